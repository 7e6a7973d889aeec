//! Answers of the control socket as text: rows as a table, all else as names and values.

use serde_json::Value;

/// Columns that say what a row is of: they come before the others, which are in the order of the alphabet; behind them what is looked for first.
const FIRST: [&str; 18] = [
    "id",
    "kind",
    "name",
    "prefix",
    "listener",
    "rule",
    "severity",
    "core",
    "group",
    "reason",
    "state",
    "open",
    "calls",
    "failures",
    "connect_ms_p50",
    "connect_ms_p99",
    "first_byte_ms_p50",
    "first_byte_ms_p99",
];

/// An answer as a table or pairs, or as it is.
///
/// # Errors
/// It is no JSON.
pub(super) fn shown(answer: &str, json: bool) -> Result<String, String> {
    match serde_json::from_str(answer) {
        Ok(_) if json => Ok(answer.to_owned()),
        Ok(Value::Array(rows)) => Ok(table(&rows)),
        Ok(whole) => Ok(pairs("", &whole).join("\n") + "\n"),
        Err(error) => Err(format!("the answer is no JSON: {error}")),
    }
}

/// An answer as TOML, as whoever wrote it has read it.
///
/// # Errors
/// It is no JSON object, or has what TOML has not.
pub(super) fn as_toml(answer: &str) -> Result<String, String> {
    let table: toml::Table =
        serde_json::from_str(answer).map_err(|error| format!("the answer is no configuration: {error}"))?;
    toml::to_string(&table).map_err(|error| error.to_string())
}

/// A line of names and a line for each row, in columns; numbers to the right.
fn table(rows: &[Value]) -> String {
    let first = rows.first().and_then(Value::as_object);
    let mut names: Vec<&String> = first.into_iter().flat_map(serde_json::Map::keys).collect();
    names.sort_by_key(|name| FIRST.iter().position(|first| first == name).unwrap_or(FIRST.len()));
    let cells: Vec<Vec<String>> = rows
        .iter()
        .map(|row| names.iter().map(|name| word(&row[*name])).collect())
        .collect();
    let width = |column: usize| {
        cells
            .iter()
            .map(|row| row[column].chars().count())
            .chain([names[column].len()])
            .max()
    };
    let widths: Vec<usize> = (0..names.len()).filter_map(width).collect();
    let is_number = |column: usize| {
        rows.iter()
            .all(|row| row[names[column]].is_number() || row[names[column]].is_null())
    };
    let line = |row: &[String]| {
        let cell = |(column, text): (usize, &String)| {
            let width = widths[column];
            if is_number(column) {
                format!("{text:>width$}")
            } else {
                format!("{text:<width$}")
            }
        };
        let cells: Vec<String> = row.iter().enumerate().map(cell).collect();
        cells.join("  ").trim_end().to_owned() + "\n"
    };
    let heading: Vec<String> = names.iter().map(|name| (*name).clone()).collect();
    std::iter::once(heading)
        .filter(|row| !row.is_empty())
        .chain(cells.iter().cloned())
        .map(|row| line(&row))
        .collect()
}

/// `name value`, a line for each number or word in `whole`, whose own name begins with `path`.
fn pairs(path: &str, whole: &Value) -> Vec<String> {
    let below = |name: &str, value: &Value| {
        let path = if path.is_empty() {
            name.to_owned()
        } else {
            format!("{path}.{name}")
        };
        pairs(&path, value)
    };
    match whole {
        Value::Object(map) => map.iter().flat_map(|(name, value)| below(name, value)).collect(),
        Value::Array(list) => list
            .iter()
            .enumerate()
            .flat_map(|(index, value)| below(&index.to_string(), value))
            .collect(),
        other => vec![format!("{path} {}", word(other))],
    }
}

fn word(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => "-".to_owned(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_configuration_is_toml_again() {
        let answer = r#"{"engine":{"cores":[2]},"pool":[{"name":"web","servers":[{"name":"a","weight":2}]}]}"#;
        let text = as_toml(answer).expect("TOML");
        let read: toml::Table = text.parse().expect("TOML");
        assert_eq!(serde_json::to_string(&read).expect("JSON"), answer);
        assert!(text.contains("[[pool]]\nname = \"web\""), "{text}");
    }

    #[test]
    fn arrays_are_tables_and_the_rest_is_pairs() {
        let rows = [
            json!({"name": "b1", "open": 5, "mss": null}),
            json!({"name": "server-2", "open": 17, "mss": 1460}),
        ];
        let text = table(&rows);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3);
        let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let column = |name: &str| words(lines[0]).iter().position(|word| word == name).expect("a column");
        assert_eq!(words(lines[1])[column("mss")], "-");
        assert_eq!(words(lines[2])[column("open")], "17");
        assert_eq!((column("name"), column("mss"), column("open")), (0, 2, 1));
        assert_eq!(table(&[]), "");
        assert_eq!(pairs("", &json!({"a": {"b": [1, "x"]}})), ["a.b.0 1", "a.b.1 x"]);
    }
}
