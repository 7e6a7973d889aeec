//! Command lines: our own, and those of go-mmproxy, mmproxy-rs and cloudflare/mmproxy as they are.
//!
//! Every option may be written with one dash or two, its value after a space or `=`; a one-letter option also takes it
//! attached (`-l0.0.0.0:80`). `udppp` as the first word is for the command line of that program (`udppp.rs`). Where two peers give one name to different things, the form decides: `-v 2` is
//! go-mmproxy's level, a bare `-v` is cloudflare's flag.

use crate::access::SourceKind;
use crate::config::{Config, ConfigError, HeaderMode, Inline, Protocol, SendHeader, SourcePort};
use crate::file::{self, File, InlineValue, OneOrMany, Section};
use crate::inline::control::PINS;
use crate::udppp;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// What the command line asks for.
#[derive(Debug)]
pub enum Command {
    /// Run as a proxy.
    Run(Source),
    /// Install the routing rules.
    Setup(RouteOptions),
    /// Verify them with a spoofed connection.
    Check(RouteOptions),
    /// Remove them.
    Teardown(RouteOptions),
    /// Show what the mmproxy counts that serves its metrics here.
    Status(SocketAddr),
    /// Print the help.
    Help,
    /// Print the version.
    Version,
}

/// Where the configuration comes from, and comes from again at a reload.
#[derive(Clone, Debug)]
pub enum Source {
    /// A file.
    File(PathBuf),
    /// The command line.
    Arguments(Box<Arguments>),
}

/// A configuration given by options.
#[derive(Clone, Debug, Default)]
pub struct Arguments {
    pub(crate) file: File,
}

impl Source {
    /// Reads and checks the configuration, with all files it names.
    ///
    /// # Errors
    /// See [`ConfigError`].
    pub fn load(&self) -> Result<Config, ConfigError> {
        match self {
            Source::File(path) => file::load(path),
            Source::Arguments(arguments) => file::check(arguments.file.clone(), "command line"),
        }
    }
}

/// Options of `setup`, `check` and `teardown`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteOptions {
    /// Routing table that sends everything to this host.
    pub table: u32,
    /// Priority of the rules; `None` lets the kernel choose.
    pub priority: Option<u32>,
    /// Interface that the server's answers come in on: `lo`, or a container's bridge.
    pub interface: String,
    /// Addresses that the servers answer from; loopback networks if none.
    pub from: Vec<ipnet::IpNet>,
    /// Firewall mark instead of source addresses, for a server on another host.
    pub mark: Option<u32>,
    /// Server that `check` connects to; one of its own if none.
    pub target: Option<std::net::SocketAddr>,
    /// Install the connection marks as well, or check or remove them.
    pub firewall: bool,
    /// Check what inline mode on the interface needs as well.
    pub inline: bool,
}

impl Default for RouteOptions {
    fn default() -> Self {
        // Table 123 is what the READMEs of all peers say.
        RouteOptions {
            table: 123,
            priority: None,
            interface: "lo".into(),
            from: vec![],
            mark: None,
            target: None,
            firewall: false,
            inline: false,
        }
    }
}

/// The text of `mmproxy --help`.
pub const HELP: &str = "\
mmproxy: accepts the PROXY protocol and connects to the server from the client's own address

  mmproxy --config FILE                      run from a file (docs/mmproxy.md)
  mmproxy [OPTIONS]                          run with one listener
  mmproxy send -l ADDR --target ADDR [...]   put headers before plain connections or datagrams
  mmproxy udppp [...]                        what udppp's command line says
  mmproxy status [--metrics ADDR]            what a running one counts [127.0.0.1:9110]
  mmproxy setup|check|teardown [...]         routing rules: install, verify with a spoofed connection, remove

Options (one dash or two, `-o VALUE` or `-o=VALUE`; names of go-mmproxy, mmproxy-rs and cloudflare/mmproxy):
  -l, --listen, --listen-addr ADDR       listen on HOST:PORT or HOST:FIRST-LAST [0.0.0.0:8443]
  -4, --ipv4, --target-v4 ADDR           target of IPv4 clients [127.0.0.1:443]
  -6, --ipv6, --target-v6 ADDR           target of IPv6 clients [[::1]:443]; \"\" for none
      --target ADDR                      one target for both, for instance unix:/PATH
  -p, --protocol tcp|udp                 [tcp]
  -a, --allowed-subnets, --allowed-networks FILE
                                         who may connect: one network per line, # comments
  -c, --close-after SECONDS              end of an idle UDP session [60]
  -m, --mark N                           SO_MARK of connections to the target [0; 123 with options of cloudflare/mmproxy alone]
      --listeners, --workers N           threads, each with its own listening socket [CPUs]
      --dynamic-destination              connect to the destination in the header
      --allowed-destinations NETS        ... if it is in one of these (comma separated)
      --listen-transparent               IP_TRANSPARENT on the listening socket (TPROXY)
      --header required|optional|off     [required]
      --header-timeout SECONDS           [10]
      --connect-timeout SECONDS          [5]
      --random-port                      keep the client's address, not its port
      --no-spoof                         connect from an address of this host
      --allow-source KIND                unspecified, multicast, broadcast, loopback, own; repeatable
      --send off|v1|v2|spp               header for the target
      --metrics ADDR                     Prometheus text at /metrics, JSON at /stats
      --cpu-affinity                     keep each thread on a CPU of its own
      --inline[=auto]                    the kernel takes the header off, and the server's own socket has the client as its
                                         peer (Linux 6.9); auto: two sockets where it cannot
  -i, --interface NAME                   ... of what comes in on this interface; repeatable
      --pin[=FOLDER]                     ... and keep its connections when mmproxy ends [/sys/fs/bpf/mmproxy]
      --user NAME                        change to this user after start
      --routes                           install the loopback routing rules at start, remove them at the end
  -N, --do-not-sandbox                   no system call filter
  -v 0|1|2, -v, -q                       errors; failed connections; every connection
  -h, --help;  -V, --version

setup, check, teardown:
      --table N [123]   --priority N   --interface NAME [lo]   --from NETS   --mark N   --target ADDR (check)
      --inline     (check) what inline mode on the interface needs, with a test connection
      --firewall   with --mark: the connection marks too, in an nft table of their own
";

/// Reads a command line, without the program's name.
///
/// # Errors
/// If it is not understood; nothing is read from files yet.
pub fn parse(arguments: impl IntoIterator<Item = String>) -> Result<Command, ConfigError> {
    let mut words: Words = Words {
        rest: arguments.into_iter().collect::<Vec<_>>().into_iter(),
        pending: None,
    };
    let first = words.rest.as_slice().first().cloned().unwrap_or_default();
    match first.as_str() {
        "setup" | "check" | "teardown" => {
            words.rest.next();
            let Some(options) = route_options(words)? else {
                return Ok(Command::Help);
            };
            Ok(match first.as_str() {
                "setup" => Command::Setup(options),
                "check" => Command::Check(options),
                _ => Command::Teardown(options),
            })
        }
        "status" => {
            words.rest.next();
            status(words)
        }
        "run" => {
            words.rest.next();
            run(words, Mode::Receive)
        }
        "send" => {
            words.rest.next();
            run(words, Mode::Send)
        }
        "udppp" => {
            words.rest.next();
            udppp::parse(words)
        }
        _ => run(words, Mode::Receive),
    }
}

/// Options that only cloudflare/mmproxy has.
const CLOUDFLARES: [&str; 5] = ["allowed-networks", "t", "table", "P", "force-real-client-port"];

/// The mark that cloudflare/mmproxy sets unless told another; the rules that it suggests are for this one.
const CLOUDFLARES_MARK: u32 = 123;

fn status(mut words: Words) -> Result<Command, ConfigError> {
    let mut metrics = SocketAddr::from(([127, 0, 0, 1], 9110));
    while let Some(name) = words.next_option()? {
        match name.as_str() {
            "h" | "help" => return Ok(Command::Help),
            "metrics" => {
                let text = words.value(&name)?;
                let address = text.parse();
                metrics = address.map_err(|_| bad(&name, &text, "an address and port, such as 127.0.0.1:9110"))?;
            }
            _ => {
                return Err(ConfigError::Arguments(format!(
                    "unknown option `{name}`; see mmproxy --help"
                )));
            }
        }
        words.nothing_attached(&name)?;
    }
    Ok(Command::Status(metrics))
}

#[derive(Copy, Clone, PartialEq, Eq)]
enum Mode {
    Receive,
    Send,
}

fn run(mut words: Words, mode: Mode) -> Result<Command, ConfigError> {
    let mut file = File {
        listener: vec![initial(mode)],
        ..File::default()
    };
    let mut config = None;
    let mut options = 0;
    let (mut is_cloudflares, mut is_marked) = (false, false);
    while let Some(name) = words.next_option()? {
        match name.as_str() {
            "h" | "help" => return Ok(Command::Help),
            "V" | "version" => return Ok(Command::Version),
            "config" => config = Some(PathBuf::from(words.value(&name)?)),
            _ => {
                options += 1;
                is_cloudflares |= CLOUDFLARES.contains(&name.as_str());
                is_marked |= matches!(name.as_str(), "m" | "mark");
                let section = &mut file.listener[0];
                if !section_option(section, &name, &mut words)? && !global_option(&mut file, &name, &mut words)? {
                    return Err(ConfigError::Arguments(format!(
                        "unknown option `{name}`; see mmproxy --help"
                    )));
                }
            }
        }
        words.nothing_attached(&name)?;
    }
    if is_cloudflares && !is_marked {
        file.listener[0].mark = CLOUDFLARES_MARK;
    }
    match config {
        Some(_) if options != 0 => Err(ConfigError::Arguments(
            "--config cannot be combined with other options".into(),
        )),
        Some(path) => Ok(Command::Run(Source::File(path))),
        None => {
            if mode == Mode::Send {
                // The default targets are for the receiving side.
                let section = &file.listener[0];
                if section.target.is_none() && section.target_v4.is_none() && section.target_v6.is_none() {
                    return Err(ConfigError::Arguments("send needs --target".into()));
                }
            }
            Ok(Command::Run(Source::Arguments(Box::new(Arguments { file }))))
        }
    }
}

/// The defaults that go-mmproxy and mmproxy-rs share.
fn initial(mode: Mode) -> Section {
    let section = Section {
        name: Some("listener".into()),
        listen: Some(OneOrMany::One("0.0.0.0:8443".into())),
        ..Section::default()
    };
    match mode {
        Mode::Receive => Section {
            target_v4: Some("127.0.0.1:443".into()),
            target_v6: Some("[::1]:443".into()),
            ..section
        },
        Mode::Send => Section {
            header: Some(HeaderMode::Off),
            spoof: Some(false),
            send: Some(SendHeader::V2),
            ..section
        },
    }
}

/// Whether `name` is an option of the listener; sets it.
fn section_option(section: &mut Section, name: &str, words: &mut Words) -> Result<bool, ConfigError> {
    match name {
        "l" | "listen" | "listen-addr" => section.listen = Some(OneOrMany::One(words.value(name)?)),
        "4" | "ipv4" | "target-v4" => section.target_v4 = Some(words.value(name)?),
        "6" | "ipv6" | "target-v6" => section.target_v6 = Some(words.value(name)?),
        "target" => {
            section.target = Some(words.value(name)?);
            (section.target_v4, section.target_v6) = (None, None);
        }
        "p" | "protocol" => {
            section.protocol = Some(OneOrMany::One(
                words.choice(name, &[("tcp", Protocol::Tcp), ("udp", Protocol::Udp)])?,
            ));
        }
        "a" | "allowed-subnets" | "allowed-networks" => {
            // go-mmproxy's default is the empty name, for everybody.
            section.allowed_subnets = Some(words.value(name)?)
                .filter(|path| !path.is_empty())
                .map(PathBuf::from);
        }
        "c" | "close-after" => section.idle_timeout = Some(words.seconds(name)?),
        "m" | "mark" => section.mark = words.number(name)?,
        "dynamic-destination" => section.dynamic_destination = words.flag(name)?,
        "allowed-destinations" => {
            section.allowed_destinations = Some(
                words
                    .value(name)?
                    .split(',')
                    .map(|text| text.trim().to_owned())
                    .collect(),
            );
        }
        "listen-transparent" => section.transparent = words.flag(name)?,
        "header" => {
            let modes = [
                ("required", HeaderMode::Required),
                ("optional", HeaderMode::Optional),
                ("off", HeaderMode::Off),
            ];
            section.header = Some(words.choice(name, &modes)?);
        }
        "header-timeout" => section.header_timeout = Some(words.seconds(name)?),
        "connect-timeout" => section.connect_timeout = Some(words.seconds(name)?),
        "random-port" => {
            section.source_port = Some(if words.flag(name)? {
                SourcePort::Random
            } else {
                SourcePort::Keep
            });
        }
        // Keeping the port is cloudflare's option and our default.
        "P" | "force-real-client-port" => {
            words.flag(name)?;
        }
        "inline" => {
            // `--inline` alone is true; a value is attached.
            section.inline = InlineValue(match words.pending.take().as_deref() {
                None | Some("true") => Inline::On,
                Some("false") => Inline::Off,
                Some("auto") => Inline::Auto,
                Some(other) => return Err(bad(name, other, "true, false or auto")),
            });
        }
        "no-spoof" => section.spoof = Some(!words.flag(name)?),
        "allow-source" => {
            let kinds = SourceKind::ALL.map(|(kind, name)| (name, kind));
            section.allow_sources.push(words.choice(name, &kinds)?);
        }
        "send" => {
            let forms = [
                ("off", SendHeader::Off),
                ("v1", SendHeader::V1),
                ("v2", SendHeader::V2),
                ("spp", SendHeader::Spp),
            ];
            section.send = Some(words.choice(name, &forms)?);
        }
        _ => return Ok(false),
    }
    Ok(true)
}

/// Whether `name` is an option of the whole; sets it.
fn global_option(file: &mut File, name: &str, words: &mut Words) -> Result<bool, ConfigError> {
    match name {
        // Go's listeners share all CPUs, so that 1, its default, says nothing about threads.
        "listeners" => file.workers = Some(words.number(name)?).filter(|&count: &usize| count > 1),
        "workers" => file.workers = Some(words.number(name)?),
        "metrics" => {
            let text = words.value(name)?;
            let address = text.parse();
            file.metrics = Some(address.map_err(|_| bad(name, &text, "an address and port, such as 127.0.0.1:9110"))?);
        }
        "user" => file.user = Some(words.value(name)?),
        "routes" => file.routes = Some(words.flag(name)?),
        "cpu-affinity" => file.cpu_affinity = Some(words.flag(name)?),
        "pin" => file.pin = Some(words.pending.take().unwrap_or_else(|| PINS.to_owned()).into()),
        "i" | "interface" => file.interfaces.push(words.value(name)?),
        "N" | "do-not-sandbox" => file.sandbox = Some(!words.flag(name)?),
        "q" | "quiet" => file.verbosity = Some(0),
        "v" | "verbose" => file.verbosity = Some(words.level()?),
        // cloudflare prints the table in its hints; here `mmproxy setup` has it.
        "t" | "table" => {
            words.number::<u32>(name)?;
        }
        _ => return Ok(false),
    }
    Ok(true)
}

/// `None` if help was asked for.
fn route_options(mut words: Words) -> Result<Option<RouteOptions>, ConfigError> {
    let mut options = RouteOptions::default();
    while let Some(name) = words.next_option()? {
        match name.as_str() {
            "h" | "help" => return Ok(None),
            "t" | "table" => options.table = words.number(&name)?,
            "priority" => options.priority = Some(words.number(&name)?),
            "i" | "interface" => options.interface = words.value(&name)?,
            "m" | "mark" => options.mark = Some(words.number(&name)?),
            "target" => {
                let text = words.value(&name)?;
                let target = text
                    .parse()
                    .map_err(|_| bad(&name, &text, "an address and port, such as 172.17.0.2:80"));
                options.target = Some(target?);
            }
            "firewall" => options.firewall = words.flag(&name)?,
            "inline" => options.inline = words.flag(&name)?,
            "from" => {
                for text in words.value(&name)?.split(',') {
                    let network = crate::access::parse_network(text.trim());
                    options.from.push(network.ok_or_else(|| bad(&name, text, "a network"))?);
                }
            }
            _ => {
                return Err(ConfigError::Arguments(format!(
                    "unknown option `{name}`; see mmproxy --help"
                )));
            }
        }
        words.nothing_attached(&name)?;
    }
    Ok(Some(options))
}

pub(crate) fn bad(name: &str, value: &str, expected: &str) -> ConfigError {
    ConfigError::Arguments(format!("option `{name}`: `{value}` is not {expected}"))
}

/// The words of a command line, option by option.
pub(crate) struct Words {
    rest: std::vec::IntoIter<String>,
    /// The value that was attached to the current option.
    pending: Option<String>,
}

impl Words {
    /// The next option's name without dashes.
    pub(crate) fn next_option(&mut self) -> Result<Option<String>, ConfigError> {
        let Some(word) = self.rest.next() else { return Ok(None) };
        let stripped = word
            .strip_prefix("--")
            .or_else(|| word.strip_prefix('-'))
            .filter(|name| !name.is_empty());
        let Some(body) = stripped else {
            return Err(ConfigError::Arguments(format!(
                "`{word}` is not an option; see mmproxy --help"
            )));
        };
        if let Some((name, value)) = body.split_once('=') {
            self.pending = Some(value.to_owned());
            return Ok(Some(name.to_owned()));
        }
        let mut letters = body.chars();
        let takes_attached = matches!(
            letters.next(),
            Some('l' | '4' | '6' | 'a' | 'm' | 't' | 'v' | 'c' | 'b' | 'h' | 'r')
        );
        let attached = letters.as_str();
        // `-l0.0.0.0:80` but not `-listen`: an attached value never begins with a letter here, except a path's slash.
        if !word.starts_with("--")
            && takes_attached
            && attached.starts_with(|c: char| c.is_ascii_digit() || "[/:".contains(c))
        {
            self.pending = Some(attached.to_owned());
            return Ok(Some(body[..1].to_owned()));
        }
        Ok(Some(body.to_owned()))
    }

    pub(crate) fn value(&mut self, name: &str) -> Result<String, ConfigError> {
        self.pending
            .take()
            .or_else(|| self.rest.next())
            .ok_or_else(|| ConfigError::Arguments(format!("option `{name}` needs a value")))
    }

    pub(crate) fn number<N: std::str::FromStr>(&mut self, name: &str) -> Result<N, ConfigError> {
        let text = self.value(name)?;
        text.parse().map_err(|_| bad(name, &text, "a number"))
    }

    fn seconds(&mut self, name: &str) -> Result<Duration, ConfigError> {
        let text = self.value(name)?;
        let seconds = text.trim_end_matches('s').parse::<u32>();
        seconds
            .map(|seconds| Duration::from_secs(seconds.into()))
            .map_err(|_| bad(name, &text, "a number of seconds"))
    }

    fn choice<T: Copy>(&mut self, name: &str, choices: &[(&str, T)]) -> Result<T, ConfigError> {
        let text = self.value(name)?;
        let found = choices.iter().find(|(choice, _)| choice.eq_ignore_ascii_case(&text));
        found.map(|&(_, value)| value).ok_or_else(|| {
            let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
            bad(name, &text, &format!("one of {}", names.join(", ")))
        })
    }

    /// A flag; Go writes `-flag=false` to switch one off.
    pub(crate) fn flag(&mut self, name: &str) -> Result<bool, ConfigError> {
        match self.pending.take().as_deref() {
            None => Ok(true),
            Some("1" | "t" | "T" | "true" | "TRUE" | "True") => Ok(true),
            Some("0" | "f" | "F" | "false" | "FALSE" | "False") => Ok(false),
            Some(text) => Err(bad(name, text, "true or false")),
        }
    }

    /// `-v 2` or a bare `-v`.
    fn level(&mut self) -> Result<u8, ConfigError> {
        let next = self.rest.as_slice().first().map(String::as_str);
        match (self.pending.take(), next) {
            (Some(text), _) => text
                .parse()
                .ok()
                .filter(|&level| level <= 2)
                .ok_or_else(|| bad("v", &text, "0, 1 or 2")),
            (None, Some("0" | "1" | "2")) => self.number("v"),
            (None, _) => Ok(2),
        }
    }

    pub(crate) fn nothing_attached(&mut self, name: &str) -> Result<(), ConfigError> {
        match self.pending.take() {
            None => Ok(()),
            Some(value) => Err(ConfigError::Arguments(format!(
                "option `{name}` takes no value, got `{value}`"
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Bind, Listener};

    fn config(line: &str) -> Config {
        let words = line.split_whitespace().map(|word| word.trim_matches('\'').to_owned());
        match parse(words) {
            Ok(Command::Run(source)) => source.load().unwrap_or_else(|error| panic!("{line}: {error}")),
            other => panic!("{line}: {other:?}"),
        }
    }

    fn listener(line: &str) -> Listener {
        config(line).listeners[0].as_ref().clone()
    }

    #[test]
    fn command_lines_of_the_peers() {
        let go = "-l 0.0.0.0:25577 -4 127.0.0.1:25578 -6 [::1]:25578 -p udp -close-after 1 -listeners 4 -mark 7 -v 2";
        let rs = "--listen-addr 0.0.0.0:25577 --ipv4 127.0.0.1:25578 --ipv6 [::1]:25578 --protocol UDP -c 1 --listeners 4 -m 7 -v 2";
        let equals =
            "--l=0.0.0.0:25577 -4=127.0.0.1:25578 --6=[::1]:25578 --p=udp --close-after=1 -listeners=4 -mark=7 -v=2";
        let expected = config(go);
        assert_eq!(
            expected.listeners[0].bind,
            Bind::Address("0.0.0.0:25577".parse().expect("address"))
        );
        assert_eq!((expected.workers, expected.verbosity), (4, 2));
        assert_eq!(
            (expected.listeners[0].protocol, expected.listeners[0].mark),
            (Protocol::Udp, 7)
        );
        assert_eq!(expected.listeners[0].udp_idle(), Duration::from_secs(1));
        for line in [rs, equals] {
            let other = config(line);
            assert_eq!(other.listeners, expected.listeners, "{line}");
            assert_eq!((other.workers, other.verbosity), (4, 2));
        }
        let cf = listener("-l0.0.0.0:2222 -4127.0.0.1:22 -6[::1]:22 -P --table 100 --mark 123 -q -v -N");
        assert_eq!((cf.mark, cf.source_port), (123, SourcePort::Keep));
        let mark = |line: &str| listener(line).mark;
        assert_eq!(
            mark("-l 0.0.0.0:2222 -4 127.0.0.1:22 -6 [::1]:22 -t 100"),
            123,
            "its default"
        );
        assert_eq!(mark("-l 0.0.0.0:2222 -P -4 127.0.0.1:22 -6 [::1]:22 -m 7"), 7);
        assert_eq!(
            mark("-l 0.0.0.0:2222 -4 127.0.0.1:22 -6 [::1]:22"),
            0,
            "no option says whose it is"
        );
        // One server for both families.
        let both = listener("-l 0.0.0.0:2222 -4 [::1]:22 -6 [::1]:22");
        let targets = [both.target_v4, both.target_v6].map(|to| to.map(|to| to.to_string()).unwrap_or_default());
        assert_eq!(targets, ["127.0.0.1:22", "[::1]:22"]);
        let kz = listener("-4 localhost:443 -dynamic-destination -listen-transparent=true -6 ''");
        assert!(kz.dynamic.is_some() && kz.transparent && kz.target_v6.is_none());
        let defaults = listener("");
        assert_eq!(
            defaults.target_v4.map(|to| to.to_string()).as_deref(),
            Some("127.0.0.1:443")
        );
    }

    #[test]
    fn a_list_that_cannot_be_read_stops_the_start() {
        let Ok(Command::Run(source)) = parse(["-allowed-subnets".into(), "/nonexistent".into()]) else {
            panic!()
        };
        assert!(source.load().is_err());
    }

    #[test]
    fn what_is_not_understood_is_named() {
        let cases = [
            ("-x", "unknown option `x`"),
            ("8443", "`8443` is not an option"),
            ("-l", "option `l` needs a value"),
            ("-p sctp", "`sctp` is not one of tcp, udp"),
            ("-mark x", "`x` is not a number"),
            ("-dynamic-destination=maybe", "true or false"),
            ("--config a -l b", "cannot be combined"),
            ("-q=1", "takes no value"),
            ("send -l 127.0.0.1:1", "send needs --target"),
        ];
        for (line, expected) in cases {
            let error = parse(line.split(' ').map(str::to_owned)).expect_err(line).to_string();
            assert!(error.contains(expected), "{line}: {error}");
        }
    }

    #[test]
    fn subcommands() {
        let parsed = parse(["setup", "--from", "172.17.0.2,10.0.0.0/24", "--interface=docker0"].map(str::to_owned));
        let Ok(Command::Setup(options)) = parsed else {
            panic!("{parsed:?}")
        };
        assert_eq!(
            (options.interface.as_str(), options.from.len(), options.table),
            ("docker0", 2, 123)
        );
        let send = listener("send -l 127.0.0.1:1 --target 127.0.0.1:2 --send v1");
        assert_eq!(
            (send.header, send.send, send.spoof),
            (HeaderMode::Off, SendHeader::V1, false)
        );
        assert!(matches!(parse(["--help".to_owned()]), Ok(Command::Help)));
    }
}
