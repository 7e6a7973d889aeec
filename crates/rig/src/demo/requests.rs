//! The demo's requests: which there are, who makes them, and who has answered.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::process::Command;
use std::time::Duration;

use crate::engine::Record;
use crate::process;
use crate::servers;
use crate::{HOSTS, Place, Rig, RigError, SERVERS};

/// Requests of each kind, for each host and address family.
const ROUNDS: usize = 4;
/// Clients of the rig, which take turns.
const CLIENTS: usize = 4;
/// First source port of the number clients; below Linux's own choice (`ip_local_port_range`).
const SOURCE_PORT: u16 = 20_000;
const LIMIT: Duration = Duration::from_secs(60);

/// How the server is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asks {
    /// curl, by the host of an HTTP request.
    HttpHost(usize),
    /// curl, by the server name in the ClientHello.
    TlsSni(usize),
    /// socat, by the first number in a line.
    FirstNumber(u32),
}

/// One request to the engine.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    number: usize,
    asks: Asks,
    ipv6: bool,
}

/// What has become of a request.
#[derive(Debug)]
pub(super) struct Outcome {
    request: Request,
    /// From where it was made; `None` when the client does not say.
    pub(super) client: Option<SocketAddr>,
    /// The server that named itself in the answer.
    answered: Result<usize, String>,
    /// The engine's record of the connection.
    pub(super) record: Option<Record>,
}

/// All requests of the demo.
pub(super) fn plan() -> Vec<Request> {
    let mut asks = Vec::new();
    for round in 0..ROUNDS {
        asks.extend((0..SERVERS).map(Asks::HttpHost));
        asks.extend((0..SERVERS).map(Asks::TlsSni));
        // Small and large numbers, every remainder as often as every other.
        let first = [0, 17, 998, 65_535][round % 4];
        asks.extend((first..first + SERVERS as u32).map(Asks::FirstNumber));
    }
    let both = [false, true]
        .into_iter()
        .flat_map(|ipv6| asks.iter().map(move |&asks| (asks, ipv6)));
    both.enumerate()
        .map(|(number, (asks, ipv6))| Request { number, asks, ipv6 })
        .collect()
}

impl Request {
    /// The server that has to answer.
    pub(super) fn wanted(&self) -> usize {
        match self.asks {
            Asks::HttpHost(index) | Asks::TlsSni(index) => index,
            Asks::FirstNumber(number) => number as usize % SERVERS,
        }
    }

    /// What decides, for people.
    pub(super) fn payload(&self) -> String {
        match self.asks {
            Asks::HttpHost(index) => format!("HTTP  Host: {}", HOSTS[index]),
            Asks::TlsSni(index) => format!("TLS   SNI: {}", HOSTS[index]),
            Asks::FirstNumber(number) => format!("text  \"{number} bottles\""),
        }
    }

    /// Makes the request and waits for the answer.
    pub(super) fn perform(self, rig: &Rig) -> Outcome {
        let from: IpAddr = match self.ipv6 {
            false => rig.client_v4(self.number % CLIENTS).into(),
            true => rig.client_v6(self.number % CLIENTS).into(),
        };
        let result = match self.asks {
            Asks::HttpHost(index) => {
                let url = format!("http://{}/request/{}", HOSTS[index], self.number);
                self.curl(rig, from, &[&url])
            }
            // Not verified: a wrong server is to be told by its name, not by its certificate.
            Asks::TlsSni(index) => self.curl(rig, from, &["--insecure", &format!("https://{}/whoami", HOSTS[index])]),
            Asks::FirstNumber(number) => self.socat(rig, from, number),
        };
        let (client, answered) = match result {
            Ok((client, answer)) => (
                Some(client),
                servers::named_in(&answer).ok_or_else(|| format!("no server names itself in {answer:?}")),
            ),
            Err(error) => (None, Err(error.to_string())),
        };
        Outcome {
            request: self,
            client,
            answered,
            record: None,
        }
    }

    fn curl(self, rig: &Rig, from: IpAddr, arguments: &[&str]) -> Result<(SocketAddr, String), RigError> {
        let family = if self.ipv6 { "-6" } else { "-4" };
        let mut curl = rig.command(Place::Clients, "curl");
        curl.args([family, "-sS", "--max-time", "10", "--interface", &from.to_string()])
            .args(["-w", "\n%{local_port}"])
            .args(arguments);
        let output = process::run(&mut curl, b"", LIMIT)?.text();
        // A port of 0 belongs to no record, which is then missed.
        let (answer, port) = output.rsplit_once('\n').unwrap_or((&output, ""));
        Ok((SocketAddr::new(from, port.parse().unwrap_or(0)), answer.to_owned()))
    }

    fn socat(self, rig: &Rig, from: IpAddr, number: u32) -> Result<(SocketAddr, String), RigError> {
        let client = SocketAddr::new(from, SOURCE_PORT + self.number as u16);
        let family = if self.ipv6 { "6" } else { "4" };
        let to = rig.engine_addresses()[usize::from(self.ipv6)];
        let address = format!("TCP{family}:{},bind={client}", SocketAddr::new(to, servers::NUMBERS));
        let mut socat: Command = rig.command(Place::Clients, "socat");
        socat.args(["-t", "30", "-", &address]);
        let output = process::run(&mut socat, format!("{number} bottles\n").as_bytes(), LIMIT)?;
        Ok((client, output.text()))
    }
}

impl Outcome {
    pub(super) fn request(&self) -> &Request {
        &self.request
    }

    /// Another server than the wanted one answered, or the engine says it chose another.
    pub(super) fn is_wrong_server(&self) -> bool {
        self.answered
            .as_ref()
            .is_ok_and(|&index| index != self.request.wanted())
    }

    /// The wanted server answered, and the record agrees.
    pub(super) fn is_right(&self) -> bool {
        let recorded = self
            .record
            .as_ref()
            .and_then(|record| record.server)
            .and_then(server_at);
        self.answered.as_ref() == Ok(&self.request.wanted()) && recorded == Some(self.request.wanted())
    }

    pub(super) fn answered(&self) -> Option<usize> {
        self.answered.as_ref().ok().copied()
    }
}

/// The server with this address on a one-armed rig.
fn server_at(address: SocketAddr) -> Option<usize> {
    let last = match address.ip() {
        IpAddr::V4(ip) => usize::from(ip.octets()[3]).checked_sub(11),
        IpAddr::V6(ip) => usize::from(ip.segments()[7]).checked_sub(0x11),
    };
    last.filter(|&index| index < SERVERS)
}

/// What is wrong with it.
impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let wanted = servers::name_of(self.request.wanted());
        write!(
            f,
            "request {} ({}), for {wanted}: ",
            self.request.number,
            self.request.payload()
        )?;
        match (&self.answered, &self.record) {
            (Err(error), _) => write!(f, "{error}"),
            (Ok(index), _) if *index != self.request.wanted() => write!(f, "{} answered", servers::name_of(*index)),
            (Ok(_), None) => write!(f, "answered, but there is no session record of {:?}", self.client),
            (Ok(_), Some(record)) => write!(f, "answered, but its session record says {:?}", record.server),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_plan_asks_enough_and_evenly() {
        let plan = plan();
        assert!(plan.len() >= 60);
        for wanted in 0..SERVERS {
            for ipv6 in [false, true] {
                let asked = plan
                    .iter()
                    .filter(|request| request.wanted() == wanted && request.ipv6 == ipv6)
                    .count();
                assert_eq!(asked, plan.len() / (2 * SERVERS));
            }
        }
    }

    #[test]
    fn a_wrong_server_is_told_from_a_failure() {
        let request = plan()[1];
        assert_eq!(request.wanted(), 1);
        let outcome = |answered: Result<usize, String>| Outcome {
            request,
            client: None,
            answered,
            record: None,
        };
        assert!(outcome(Ok(0)).is_wrong_server());
        assert!(
            !outcome(Ok(1)).is_wrong_server() && !outcome(Ok(1)).is_right(),
            "no record: a failure"
        );
        assert!(!outcome(Err(String::new())).is_wrong_server());
    }
}
