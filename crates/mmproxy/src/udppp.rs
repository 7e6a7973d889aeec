//! The command line of b23r0/udppp, as `mmproxy udppp …` or when the binary is called by that name.
//!
//! Mode 1 stands before a balancer's network and sends datagrams on with or without a header; mode 2 takes headers off and
//! sends from the client's address. udppp's letters mean other things than those of the TCP programs, so they are read
//! here.

use crate::cli::{Arguments, Command, Source, Words, bad};
use crate::config::{ConfigError, HeaderMode, Protocol, SendHeader};
use crate::file::{File, OneOrMany, Section};
use std::time::Duration;

/// When udppp forgets a client that sends nothing.
const IDLE: Duration = Duration::from_secs(180);

/// Reads the words after `udppp`.
pub(crate) fn parse(mut words: Words) -> Result<Command, ConfigError> {
    let (mut mode, mut local, mut remote, mut host) = (1u8, None, None, None);
    let mut bind = "127.0.0.1".to_owned();
    let (mut has_header, mut is_silent) = (false, false);
    while let Some(name) = words.next_option()? {
        match name.as_str() {
            "help" => return Ok(Command::Help),
            "m" | "mode" => mode = words.number(&name)?,
            "l" | "local-port" => local = Some(words.number::<u16>(&name)?),
            "r" | "remote-port" => remote = Some(words.number::<u16>(&name)?),
            "h" | "host" => host = Some(words.value(&name)?),
            "b" | "bind" => bind = words.value(&name)?,
            "p" | "proxyprotocol" => has_header = words.flag(&name)?,
            // Its own spelling.
            "s" | "slient" | "silent" => is_silent = words.flag(&name)?,
            _ => {
                return Err(ConfigError::Arguments(format!(
                    "unknown option `{name}` of udppp: -m, -b, -l, -h, -r, -p, -s"
                )));
            }
        }
        words.nothing_attached(&name)?;
    }
    let missing = |name| ConfigError::Arguments(format!("udppp needs option `{name}`"));
    let listen = format!("{}:{}", bracketed(&bind), local.ok_or_else(|| missing("l"))?);
    let host = host.ok_or_else(|| missing("h"))?;
    let target = format!("{}:{}", bracketed(&host), remote.ok_or_else(|| missing("r"))?);
    let section = Section {
        name: Some("udppp".into()),
        listen: Some(OneOrMany::One(listen)),
        protocol: Some(OneOrMany::One(Protocol::Udp)),
        target: Some(target),
        idle_timeout: Some(IDLE),
        ..Section::default()
    };
    let section = match mode {
        1 => Section {
            header: Some(HeaderMode::Off),
            spoof: Some(false),
            send: Some(if has_header { SendHeader::V2 } else { SendHeader::Off }),
            ..section
        },
        // It does not look at `-p` here.
        2 => section,
        _ => return Err(bad("m", &mode.to_string(), "1 or 2")),
    };
    let file = File {
        listener: vec![section],
        verbosity: is_silent.then_some(0),
        ..File::default()
    };
    Ok(Command::Run(Source::Arguments(Box::new(Arguments { file }))))
}

fn bracketed(host: &str) -> String {
    if host.contains(':') && !host.starts_with('[') {
        format!("[{host}]")
    } else {
        host.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use crate::cli::{self, Command};
    use crate::config::{Config, HeaderMode, Protocol, SendHeader};
    use std::time::Duration;

    fn parse(line: &str) -> Result<Config, String> {
        let words = ["udppp"].into_iter().chain(line.split_whitespace()).map(str::to_owned);
        match cli::parse(words).map_err(|error| error.to_string())? {
            Command::Run(source) => source.load().map_err(|error| error.to_string()),
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn its_command_lines_are_taken_as_they_are() {
        let sender = parse("-m 1 -b 0.0.0.0 -l 8000 -h 192.0.2.2 -r 8001 -p").expect("accepted");
        let [listener] = &sender.listeners[..] else { panic!() };
        assert_eq!(
            listener.bind,
            crate::config::Bind::Address("0.0.0.0:8000".parse().expect("address"))
        );
        assert_eq!(
            (listener.header, listener.send, listener.spoof),
            (HeaderMode::Off, SendHeader::V2, false)
        );
        assert_eq!(listener.protocol, Protocol::Udp);
        assert_eq!(listener.udp_idle(), Duration::from_secs(180));
        let target = listener.target_v4.as_ref().map(ToString::to_string);
        assert_eq!(target.as_deref(), Some("192.0.2.2:8001"));

        let plain = parse("--mode=1 --local-port=8000 --host=192.0.2.2 --remote-port 8001 -s").expect("accepted");
        assert_eq!((plain.listeners[0].send, plain.verbosity), (SendHeader::Off, 0));
        assert_eq!(
            plain.listeners[0].bind,
            crate::config::Bind::Address("127.0.0.1:8000".parse().expect("address"))
        );

        for line in [
            "-m 2 -b 0.0.0.0 -l 8000 -h 127.0.0.1 -r 8001 -p",
            "-m2 -b0.0.0.0 -l8000 -h127.0.0.1 -r8001",
        ] {
            let receiver = parse(line).expect("accepted");
            let listener = &receiver.listeners[0];
            assert_eq!(
                (listener.header, listener.send, listener.spoof),
                (HeaderMode::Required, SendHeader::Off, true)
            );
        }
    }

    #[test]
    fn what_lacks_is_named() {
        let cases = [
            ("-l 1 -r 2", "needs option `h`"),
            ("-h 127.0.0.1 -r 2", "needs option `l`"),
            ("-h 127.0.0.1 -l 2", "needs option `r`"),
            ("-m 3 -h 127.0.0.1 -l 1 -r 2", "`3` is not 1 or 2"),
            ("-l x", "`x` is not a number"),
            ("-4 127.0.0.1:1", "unknown option `4` of udppp"),
        ];
        for (line, expected) in cases {
            let error = parse(line).expect_err(line);
            assert!(error.contains(expected), "{line}: {error}");
        }
    }
}
