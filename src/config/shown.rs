//! The file behind a configuration, for whoever asks a running engine: without what may be a secret.

use serde_json::Value;

use super::Config;

/// Stands in the place of what is not shown.
const LEFT_OUT: &str = "(left out)";

impl Config {
    /// What the file says of which this was made. What checks send, and the queries of their paths, may be passwords or tokens and are
    /// left out.
    pub fn without_secrets(&self) -> Value {
        // It was read as a table once, or there would be no configuration.
        let table: toml::Table = self.origin.text().parse().unwrap_or_default();
        let mut file = serde_json::to_value(table).unwrap_or_default();
        leave_out(&mut file);
        file
    }
}

fn leave_out(value: &mut Value) {
    match value {
        Value::Object(table) => {
            if let Some(Value::Object(check)) = table.get_mut("check") {
                leave_out_of_check(check);
            }
            table.values_mut().for_each(leave_out);
        }
        Value::Array(items) => items.iter_mut().for_each(leave_out),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn leave_out_of_check(check: &mut serde_json::Map<String, Value>) {
    if let Some(sent) = check.get_mut("send") {
        *sent = LEFT_OUT.into();
    }
    if let Some(Value::String(path)) = check.get_mut("path")
        && let Some(query) = path.find('?')
    {
        path.replace_range(query + 1.., LEFT_OUT);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_is_shown_but_for_what_checks_send() {
        let text = include_str!("../../config/demo.toml").to_owned()
            + r#"
            [[pool]]
            name = "asked"
            check = { kind = "send", send = "AUTH hunter2\\r\\n", expect = "OK" }
            servers = [
                { name = "a", address = "10.77.0.21:80" },
                { name = "b", address = "10.77.0.22:80", check = { kind = "http", path = "/up?token=hunter2" } },
            ]
            "#;
        let config = Config::parse(&text, "proxyengine.toml").expect("a configuration");
        let shown = config.without_secrets();
        let pool = shown["pool"].as_array().and_then(|pools| pools.last()).expect("a pool");
        assert_eq!(pool["check"]["expect"], "OK");
        assert_eq!(pool["check"]["send"], LEFT_OUT);
        assert_eq!(pool["servers"][1]["check"]["path"], "/up?(left out)");
        assert!(!shown.to_string().contains("hunter2"));
    }
}
