//! ldapsearch to two slapd by the name that it binds as.

use std::net::IpAddr;

use rig::engine::EngineOptions;
use rig::servers::{self, LDAP, PASSWORD};
use rig::{Place, RigOptions};

use crate::setup::{LIMIT, Setup};

/// People to the first server, everyone else who has a name to the second, and so the nameless.
fn tables(family: &str, [engine, one, two]: [&str; 3]) -> String {
    format!(
        r#"
[[listener]]
name = "ldap{family}"
addresses = ["{engine}:{LDAP}"]
rules = [
    {{ ldap_bind_dn = "ou=people,dc=example,dc=org", pool = "people{family}" }},
    {{ ldap_bind_dn = "ou=staff,dc=example,dc=org", pool = "others{family}" }},
    {{ ldap_bind_dn = "", pool = "others{family}" }},
]

[[pool]]
name = "people{family}"
servers = [{{ name = "one{family}", address = "{one}:{LDAP}" }}]

[[pool]]
name = "others{family}"
servers = [{{ name = "two{family}", address = "{two}:{LDAP}" }}]
"#
    )
}

/// Binds and asks for the name of the server.
fn search(setup: &Setup, engine: IpAddr, bind: &[&str]) -> Result<String, rig::RigError> {
    let url = format!("ldap://{}", std::net::SocketAddr::new(engine, LDAP));
    let mut arguments = vec!["-x", "-LLL", "-o", "nettimeout=30", "-H", &url];
    arguments.extend(bind);
    arguments.extend(["-b", "dc=example,dc=org", "-s", "base", "o"]);
    let found = setup.rig.run(Place::Clients, "ldapsearch", &arguments, LIMIT)?.text();
    let name = found.lines().find_map(|line| line.strip_prefix("o: "));
    Ok(name.unwrap_or_else(|| panic!("no name: {found}")).to_owned())
}

#[test]
fn ldapsearch_reaches_the_server_of_the_name_it_binds_as() {
    let options = EngineOptions {
        services: Vec::new(),
        tables: tables("4", ["10.77.0.1", "10.77.0.11", "10.77.0.12"])
            + &tables("6", ["[fd77::1]", "[fd77::11]", "[fd77::12]"]),
        ..EngineOptions::default()
    };
    let start = |rig: &rig::Rig| {
        (0..2)
            .map(|index| servers::start_slapd(rig, index).expect("slapd starts"))
            .collect()
    };
    let tools = ["ldapsearch", "slapd", "slapadd"];
    let Some(setup) = Setup::new(RigOptions::default(), &options, &tools, start) else {
        return;
    };
    for engine in setup.rig.engine_addresses() {
        for (bind, server) in [
            (&["-D", "cn=alice,ou=people,dc=example,dc=org", "-w", PASSWORD][..], 0),
            // The same name, written otherwise.
            (&["-D", "CN=Alice, OU=People, DC=example, DC=org", "-w", PASSWORD], 0),
            (&["-D", "cn=bob,ou=staff,dc=example,dc=org", "-w", PASSWORD], 1),
            (&[], 1),
        ] {
            let name = search(&setup, engine, bind).unwrap_or_else(|error| panic!("{bind:?}: {error}"));
            assert_eq!(name, servers::name_of(server), "{bind:?}");
        }
        let wrong = ["-D", "cn=alice,ou=people,dc=example,dc=org", "-w", "guessed"];
        let refusal = search(&setup, engine, &wrong)
            .expect_err("a wrong password")
            .to_string();
        assert!(
            refusal.contains("Invalid credentials (49)"),
            "the server's own refusal: {refusal}"
        );
        let stranger = ["-D", "cn=eve,dc=example,dc=com", "-w", PASSWORD];
        let refusal = search(&setup, engine, &stranger).expect_err("nobody's").to_string();
        assert!(refusal.contains("Can't contact LDAP server"), "the engine's: {refusal}");
    }
    let (report, _rig) = setup.finish();
    assert_eq!(report.records.len(), 2 * 6);
}
