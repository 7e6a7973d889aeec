//! A database of addresses as the file of a list.

use std::fs;

use mmdb_writer::{Value, Writer};

use crate::{GOOD, Place, code, stderr};

/// Countries and networks, where GeoLite2's databases have them.
fn database(place: &Place) -> String {
    let mut writer = Writer::new("Test");
    let country = |code: &str| Value::map([("country", Value::map([("iso_code", code)]))]);
    let network = Value::map([
        ("autonomous_system_number", Value::U32(64_496)),
        ("autonomous_system_organization", Value::String("Two Words".to_owned())),
    ]);
    for (prefix, record) in [
        ("192.0.2.0/24", country("DE")),
        ("198.51.100.0/25", country("FR")),
        ("203.0.113.64/26", network),
        ("2001:db8::/32", country("DE")),
    ] {
        let prefix: ipnet::IpNet = prefix.parse().expect("a prefix");
        writer.insert_value(prefix, record).expect("there is room");
    }
    let file = place.path("test.mmdb");
    fs::write(&file, writer.to_bytes().expect("a database")).expect("written");
    file.display().to_string()
}

#[test]
fn a_database_becomes_a_list_that_a_rule_asks() {
    let place = Place::new(GOOD);
    let database = database(&place);
    let lines = |arguments: &[&str]| {
        let output = place.output(&[&["mmdb", &database], arguments].concat());
        assert_eq!(code(&output), 0, "{}", stderr(&output));
        let text = String::from_utf8(output.stdout).expect("text");
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    let all = lines(&[]);
    assert_eq!(all, ["192.0.2.0/24 DE", "198.51.100.0/25 FR", "2001:db8::/32 DE"]);
    assert_eq!(lines(&["--only", "FR,IT"]), ["198.51.100.0/25 FR"]);
    let by_number = lines(&["--class", "autonomous_system_number"]);
    assert_eq!(by_number, ["203.0.113.64/26 64496"]);
    let file = place.path("countries.txt");
    fs::write(&file, all.join("\n")).expect("written");
    let list = format!("[[list]]\nname = \"countries\"\nfile = \"{}\"\n", file.display());
    let rule = "rules = [{ client = [\"countries:DE\"], action = \"drop\" }]\ndefault = \"pool\"";
    let config = GOOD.replace("RECORDS", "-").replace("default = \"pool\"", rule) + &list;
    fs::write(place.path("engine.toml"), config).expect("written");
    let output = place.output(&["check", "engine.toml"]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
}

#[test]
fn what_no_list_can_have_is_named() {
    let place = Place::new(GOOD);
    let database = database(&place);
    let complaint = |arguments: &[&str]| {
        let output = place.output(&[&["mmdb"], arguments].concat());
        assert_eq!((code(&output), output.stdout.len()), (1, 0));
        stderr(&output)
    };
    let said = complaint(&[&database, "--class", "autonomous_system_organization"]);
    assert!(said.contains("203.0.113.64/26 is \"Two Words\""), "{said}");
    let said = complaint(&[&database, "--class", "city.name"]);
    assert!(said.contains("no record has a class at \"city.name\""), "{said}");
    let said = complaint(&["engine.toml"]);
    assert!(said.contains("engine.toml"), "{said}");
    let said = complaint(&["nowhere.mmdb"]);
    assert!(said.contains("nowhere.mmdb"), "{said}");
}
