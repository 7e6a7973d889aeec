//! Where a measurement takes place: client and server on one loopback, or in two namespaces joined by a veth pair.

use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::AsFd;
use std::process::Command;

/// How client and server reach each other.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Loopback,
    /// The client has a namespace of its own, as a balancer has a host of its own.
    Veth,
}

impl Place {
    /// Where clients connect to, be it the server or its proxy.
    pub(crate) fn server(self) -> Ipv4Addr {
        match self {
            Place::Loopback => Ipv4Addr::LOCALHOST,
            Place::Veth => Ipv4Addr::new(10, 7, 0, 1),
        }
    }

    /// Where servers listen: there, and on loopback for their proxy. What a server answers from another address leaves by the
    /// interface, and never reaches the proxy, which has connected from its client's address: `mmproxy setup` routes loopback's.
    pub(crate) fn bind(self) -> Ipv4Addr {
        match self {
            Place::Loopback => Ipv4Addr::LOCALHOST,
            Place::Veth => Ipv4Addr::UNSPECIFIED,
        }
    }

    /// One of the many addresses that clients connect from to a server, so that ports never run out.
    pub(crate) fn client(server: SocketAddr, serial: u32) -> Ipv4Addr {
        let [first, second] = if server.ip().is_loopback() { [127, 1] } else { [10, 9] };
        Ipv4Addr::new(first, second, (serial / 250 % 250) as u8, (serial % 250 + 1) as u8)
    }

    /// What packets come in by.
    pub(crate) fn interface(self) -> &'static str {
        match self {
            Place::Loopback => "lo",
            Place::Veth => "inside",
        }
    }

    /// Moves this thread, and all that it starts from now on, to a new namespace with loopback and routing. Its namespaces go
    /// when the last of them has gone. What chooses no `congestion` control of its own gets this one, or the system's.
    pub(crate) fn enter(self, congestion: Option<&str>) -> Result<Site, String> {
        let server = namespace("")?;
        let client = match self {
            Place::Loopback => None,
            Place::Veth => Some(namespace("-client")?),
        };
        move_into(&server)?;
        prepare(congestion)?;
        mmproxy::netsetup::setup(&mmproxy::cli::RouteOptions::default()).map_err(|error| error.to_string())?;
        mmproxy::privileges::raise_descriptor_limit();
        if let Some(client) = &client {
            let file = format!(
                "/proc/{}/fd/{}",
                std::process::id(),
                rustix::fd::AsRawFd::as_raw_fd(client)
            );
            ip(&format!("link add inside type veth peer name outside netns {file}"))?;
            ip("addr add 10.7.0.1/24 dev inside")?;
            ip("link set inside up")?;
            let congestion = congestion.map(str::to_owned);
            in_client(client, move || join_server(congestion.as_deref()))??;
            // Replies to clients, and those to the addresses that headers name, have the same next hop.
            ip("route add default via 10.7.0.2")?;
        }
        Ok(Site { client })
    }
}

/// Namespaces that a measurement takes place in. The thread that made it is in the server's.
pub(crate) struct Site {
    client: Option<File>,
}

impl Site {
    /// Moves this thread to where clients are.
    pub(crate) fn enter_as_client(&self) -> Result<(), String> {
        self.client.as_ref().map_or(Ok(()), move_into)
    }
}

/// The client's end of the veth pair.
fn join_server(congestion: Option<&str>) -> Result<(), String> {
    prepare(congestion)?;
    ip("addr add 10.7.0.2/24 dev outside")?;
    ip("link set outside up")?;
    // All of them are this host's own.
    ip("route add local 10.9.0.0/16 dev lo")?;
    ip("route add default via 10.7.0.1")
}

fn prepare(congestion: Option<&str>) -> Result<(), String> {
    ip("link set lo up")?;
    match congestion {
        // This namespace's, as this thread is in it. Linux lets it have those only that need no privilege.
        Some(name) => std::fs::write(crate::CONGESTION, name).map_err(|error| format!("--congestion {name}: {error}")),
        None => Ok(()),
    }
}

fn ip(arguments: &str) -> Result<(), String> {
    let status = Command::new("ip")
        .args(arguments.split(' '))
        .status()
        .map_err(|error| format!("ip: {error}"))?;
    if status.success() {
        Ok(())
    } else {
        Err(format!("ip {arguments}: {status}; root is needed"))
    }
}

/// A new namespace without a name.
fn namespace(suffix: &str) -> Result<File, String> {
    let name = format!("mmproxy-bench-{}{suffix}", std::process::id());
    ip(&format!("netns add {name}"))?;
    let file = File::open(format!("/run/netns/{name}")).map_err(|error| error.to_string());
    // Only the name.
    ip(&format!("netns del {name}"))?;
    file
}

fn move_into(namespace: &File) -> Result<(), String> {
    let kind = rustix::thread::ThreadNameSpaceType::NETWORK;
    rustix::thread::move_into_thread_name_spaces(namespace.as_fd(), kind).map_err(|error| error.to_string())
}

/// Runs `act` on a thread in the client's namespace.
fn in_client<T: Send>(client: &File, act: impl FnOnce() -> T + Send) -> Result<T, String> {
    std::thread::scope(|scope| {
        let inside = scope.spawn(|| move_into(client).map(|()| act()));
        inside.join().map_err(|_| "a thread failed".to_owned())?
    })
}
