//! psql to two PostgreSQL servers: by database, by user, by TLS server name, and by its wish to encrypt.

use std::net::{IpAddr, SocketAddr};

use rig::engine::EngineOptions;
use rig::process::Process;
use rig::servers::{self, Certificates, POSTGRES};
use rig::{HOSTS, Place, RigOptions};

use crate::setup::{LIMIT, Setup};

/// Where PostgreSQL inside TLS is served. The clients of Debian 12 cannot begin with TLS (`sslnegotiation=direct` needs libpq
/// 17), so socat does it for psql, and socat ends it again in front of the server.
const POSTGRES_TLS: u16 = 6432;
/// Where the clients' socat listens for psql.
const INSIDE: u16 = 7432;

/// Both listeners for one address family.
fn tables(family: &str, engine: IpAddr, [one, two]: [IpAddr; 2]) -> String {
    let at = SocketAddr::new;
    format!(
        r#"
[[listener]]
name = "postgres{family}"
addresses = ["{}"]
rules = [
    {{ postgres_database = "shop", pool = "one{family}" }},
    {{ postgres_user = "bob", pool = "two{family}" }},
    {{ ssl_request = true, pool = "two{family}" }},
]

[[listener]]
name = "tls{family}"
addresses = ["{}"]
rules = [
    {{ tls_sni = "{}", pool = "tls-one{family}" }},
    {{ tls_sni = "{}", pool = "tls-two{family}" }},
]

[[pool]]
name = "one{family}"
servers = [{{ name = "one{family}", address = "{}" }}]

[[pool]]
name = "two{family}"
servers = [{{ name = "two{family}", address = "{}" }}]

[[pool]]
name = "tls-one{family}"
servers = [{{ name = "tls-one{family}", address = "{}" }}]

[[pool]]
name = "tls-two{family}"
servers = [{{ name = "tls-two{family}", address = "{}" }}]
"#,
        at(engine, POSTGRES),
        at(engine, POSTGRES_TLS),
        HOSTS[0],
        HOSTS[1],
        at(one, POSTGRES),
        at(two, POSTGRES),
        at(one, POSTGRES_TLS),
        at(two, POSTGRES_TLS),
    )
}

fn with_postgres() -> Option<(Setup, Certificates)> {
    let mut certificates = None;
    let start = |rig: &rig::Rig| {
        let made = certificates.insert(Certificates::make(rig).expect("certificates"));
        let mut servers = servers::start_postgres(rig, made).expect("PostgreSQL starts");
        for index in 0..2 {
            servers
                .extend(servers::start_tls_terminator(rig, index, made, POSTGRES_TLS, POSTGRES).expect("socat starts"));
        }
        servers
    };
    let rig = RigOptions::default();
    let [engine, one, two] = [
        ["10.77.0.1", "fd77::1"],
        ["10.77.0.11", "fd77::11"],
        ["10.77.0.12", "fd77::12"],
    ]
    .map(|addresses| addresses.map(|address| address.parse::<IpAddr>().expect("an address")));
    let options = EngineOptions {
        services: Vec::new(),
        tables: (0..2)
            .map(|family| tables(["4", "6"][family], engine[family], [one[family], two[family]]))
            .collect(),
        ..EngineOptions::default()
    };
    let program = servers::postgres_program();
    let tools = ["psql", "socat", "openssl", "setpriv", &program.to_string_lossy()];
    let setup = Setup::new(rig, &options, &tools, start)?;
    Some((setup, certificates?))
}

/// Asks, as psql does it, which server, database and user this is, and whether the session is encrypted.
fn ask(setup: &Setup, connection: &str) -> String {
    let question = "SELECT current_setting('cluster_name'), current_database(), current_user, ssl \
                    FROM pg_stat_ssl WHERE pid = pg_backend_pid()";
    let connection = format!("{connection} connect_timeout=30");
    let arguments = [
        "--no-psqlrc",
        "--tuples-only",
        "--no-align",
        "--command",
        question,
        &connection,
    ];
    let answer = setup.rig.run(Place::Clients, "psql", &arguments, LIMIT);
    answer
        .unwrap_or_else(|error| panic!("{error}"))
        .text()
        .trim()
        .to_owned()
}

#[test]
fn psql_reaches_the_server_of_its_database_or_its_user() {
    let Some((setup, _)) = with_postgres() else { return };
    let engines = setup.rig.engine_addresses();
    for engine in engines {
        let ask = |who: &str| ask(&setup, &format!("host={engine} sslmode=disable {who}"));
        assert_eq!(ask("dbname=shop user=alice"), "server1|shop|alice|f");
        assert_eq!(ask("dbname=shop user=bob"), "server1|shop|bob|f");
        assert_eq!(ask("dbname=stock user=bob"), "server2|stock|bob|f");
    }
    // Who is in no rule is turned away.
    let stranger = format!("host={} sslmode=disable dbname=stock user=alice", engines[0]);
    let error = setup
        .rig
        .run(Place::Clients, "psql", &["-c", "SELECT 1", &stranger], LIMIT)
        .expect_err("no rule");
    assert!(
        error.to_string().contains("server closed the connection") || error.to_string().contains("reset by peer"),
        "{error}"
    );
    let (report, _rig) = setup.finish();
    assert_eq!(report.records.len(), 7);
}

/// What psql does by default (`sslmode=prefer`): it asks whether it may encrypt, and waits.
#[test]
fn psql_that_wants_to_encrypt_is_served_by_the_rule_for_it() {
    let Some((setup, _)) = with_postgres() else { return };
    for engine in setup.rig.engine_addresses() {
        for mode in ["", "sslmode=require"] {
            let answer = ask(&setup, &format!("host={engine} dbname=shop user=alice {mode}"));
            assert_eq!(
                answer, "server2|shop|alice|t",
                "not by its database, which comes too late"
            );
        }
    }
    let (report, _rig) = setup.finish();
    assert_eq!(report.records.len(), 4);
}

#[test]
fn psql_inside_tls_reaches_the_server_of_its_name() {
    let Some((setup, certificates)) = with_postgres() else {
        return;
    };
    for engine in setup.rig.engine_addresses() {
        for (index, host) in HOSTS.iter().take(2).enumerate() {
            let _tunnel = start_tunnel(&setup, &certificates, SocketAddr::new(engine, POSTGRES_TLS), host);
            let answer = ask(
                &setup,
                &format!("host=127.0.0.1 port={INSIDE} sslmode=disable dbname=shop user=alice"),
            );
            assert_eq!(answer, format!("{}|shop|alice|f", servers::name_of(index)));
        }
    }
    let (report, _rig) = setup.finish();
    assert_eq!(report.records.len(), 4);
}

/// socat, which takes psql's connection and begins with TLS towards `to`, naming `host` and checking its certificate.
fn start_tunnel(setup: &Setup, certificates: &Certificates, to: SocketAddr, host: &str) -> Process {
    let listen = format!("TCP4-LISTEN:{INSIDE},bind=127.0.0.1,reuseaddr,fork");
    let tls = format!(
        "OPENSSL:{to},snihost={host},commonname={host},cafile={}",
        certificates.trusted().display()
    );
    let mut socat = setup
        .rig
        .start(Place::Clients, "tunnel", "socat", &[&listen, &tls])
        .expect("socat starts");
    let at = SocketAddr::from(([127, 0, 0, 1], INSIDE));
    socat.wait_for_listeners(&[at], LIMIT).expect("it listens");
    socat
}
