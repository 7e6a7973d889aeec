//! Session records as text, CSV and JSON lines.
//!
//! The text form is ProxyEngine's `c_records.txt`: a line for the client's half and one for the server's. CSV follows
//! RFC 4180 with a header line, JSON is one object per line. Times are nanoseconds since 1970 for the start and
//! microseconds since the start for states.

use std::fmt::{self, Display, Write as _};
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;
use std::sync::Arc;

use crate::leg::Side;
use crate::legs::{LegFigures, Legs};
use crate::record::{NO_SERVER, RecordFlags, SessionRecord, TRANSPARENT};

/// How records are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RecordFormat {
    /// ProxyEngine's text, two lines per record.
    Text,
    /// Comma-separated values with a header line.
    Csv,
    /// One JSON object per line.
    JsonLines,
}

/// The name is none of `text`, `csv`, `jsonl`.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown record format {0:?}: expected \"text\", \"csv\" or \"jsonl\"")]
pub struct UnknownFormat(String);

impl FromStr for RecordFormat {
    type Err = UnknownFormat;

    fn from_str(name: &str) -> Result<RecordFormat, UnknownFormat> {
        match name {
            "text" => Ok(RecordFormat::Text),
            "csv" => Ok(RecordFormat::Csv),
            "jsonl" => Ok(RecordFormat::JsonLines),
            other => Err(UnknownFormat(other.to_owned())),
        }
    }
}

/// A server of the configuration.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Named {
    /// Its name in the configuration.
    pub name: String,
    /// Its address and port.
    pub address: SocketAddr,
}

/// What the indices in a record mean.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct NameTable {
    /// Names of listeners, by `SessionRecord::listener`.
    pub listeners: Vec<String>,
    /// By `SessionRecord::server`.
    pub servers: Vec<Named>,
    /// By `SessionRecord::local_address` and `SessionRecord::called_address`.
    pub local_addresses: Vec<IpAddr>,
    /// By `SessionRecord::class`.
    pub classes: Vec<String>,
    /// Nanoseconds from 1970 to `Instant::ZERO`.
    pub epoch_ns: u64,
}

impl NameTable {
    /// The name of the listener that the client called.
    pub fn listener(&self, record: &SessionRecord) -> Option<&str> {
        self.listeners.get(usize::from(record.listener)).map(String::as_str)
    }

    /// The address and port that the client called.
    pub fn called(&self, record: &SessionRecord) -> Option<SocketAddr> {
        let address = self.local_addresses.get(usize::from(record.called_address))?;
        Some(SocketAddr::new(*address, record.called_port))
    }

    /// The server, if one was chosen.
    pub fn server(&self, record: &SessionRecord) -> Option<&Named> {
        self.servers
            .get(usize::from(record.server))
            .filter(|_| record.server != NO_SERVER)
    }

    /// The class that the client was in, if it was in one.
    pub fn class(&self, record: &SessionRecord) -> Option<&str> {
        self.classes.get(usize::from(record.class)).map(String::as_str)
    }

    /// Our address towards the server, if a server was called.
    pub fn local_address(&self, record: &SessionRecord) -> Option<IpAddr> {
        match record.local_address {
            TRANSPARENT => Some(record.client()),
            _ if record.local_port == 0 => None,
            index => self.local_addresses.get(usize::from(index)).copied(),
        }
    }

    /// Nanoseconds from 1970 to the client's handshake.
    pub fn start_ns(&self, record: &SessionRecord) -> u64 {
        self.epoch_ns.saturating_add(record.start().as_nanos())
    }
}

/// Records as lines of one format.
pub struct RecordLines {
    format: RecordFormat,
    names: Arc<NameTable>,
    sample: u32,
    number: u64,
    line: String,
}

impl RecordLines {
    /// Lines of records of which one in `sample` is written.
    pub fn new(format: RecordFormat, names: Arc<NameTable>, sample: u32) -> RecordLines {
        RecordLines {
            format,
            names,
            sample,
            number: 0,
            line: String::with_capacity(1024),
        }
    }

    /// What comes before the first line: the names of the columns, if the format has some.
    pub fn header(&self) -> &'static str {
        match self.format {
            RecordFormat::Csv => CSV_HEADER,
            RecordFormat::Text | RecordFormat::JsonLines => "",
        }
    }

    /// Has numbers mean this from now on.
    pub fn set_names(&mut self, names: Arc<NameTable>) {
        self.names = names;
    }

    /// The line of this record with its line feed; two lines as text.
    pub fn line(&mut self, record: &SessionRecord) -> &str {
        self.line.clear();
        let formatted = match self.format {
            RecordFormat::Text => write_text(&mut self.line, self.number, record, &self.names),
            RecordFormat::Csv => write_csv(&mut self.line, record, &self.names, self.sample),
            RecordFormat::JsonLines => write_json(&mut self.line, record, &self.names, self.sample),
        };
        // A string takes everything.
        debug_assert!(formatted.is_ok());
        self.number += 1;
        &self.line
    }
}

/// `-` in place of what is not there.
struct OrDash<T>(Option<T>);

impl<T: Display> Display for OrDash<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Some(value) => value.fmt(f),
            None => f.write_str("-"),
        }
    }
}

impl Display for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.name, self.address)
    }
}

fn write_text(out: &mut String, index: u64, record: &SessionRecord, names: &NameTable) -> fmt::Result {
    let client = SocketAddr::new(record.client(), record.client_port);
    let local = names
        .local_address(record)
        .map(|address| SocketAddr::new(address, record.local_port));
    write!(out, "{index:6}: (Client, {client}, ")?;
    if let Some((address, port)) = record.peer() {
        write!(out, "through {}, ", SocketAddr::new(address, port))?;
    }
    match (names.listener(record), names.called(record)) {
        (Some(name), Some(called)) => write!(out, "{name} {called}, ")?,
        _ => out.push_str("-, "),
    }
    write!(out, "{}, {}, ", OrDash(local), OrDash(names.server(record)))?;
    write!(
        out,
        "{}/{} to server, ",
        record.packets_to_server,
        record.bytes_to_server()
    )?;
    write!(
        out,
        "{}/{} to client, ",
        record.packets_to_client,
        record.bytes_to_client()
    )?;
    write_half(out, record, Side::Client, Some(names.start_ns(record)))?;
    out.push_str("        (Server, ");
    write_half(out, record, Side::Server, None)
}

fn write_half(out: &mut String, record: &SessionRecord, side: Side, start: Option<u64>) -> fmt::Result {
    let changes = || record.changes().filter(move |change| change.side == side);
    out.push('[');
    write_list(out, ", ", changes().map(|change| change.state.name()))?;
    write!(out, "], {}, ", record.cause(side).name())?;
    if let Some(start) = start {
        write!(out, "{start}, ")?;
    }
    out.push('[');
    write_list(out, ", ", changes().map(|change| change.after.as_micros()))?;
    out.push(']');
    if let Some(legs) = &record.legs {
        let leg = legs.of(side);
        write!(
            out,
            ", rtt {} of {}, least {}",
            leg.smoothed_rtt, leg.rtts, leg.least_rtt
        )?;
        write!(out, ", {} segments, {} retransmitted", leg.segments, leg.retransmitted)?;
        write!(out, ", {} out of order, {} duplicate", leg.out_of_order, leg.duplicate)?;
        write!(out, ", {} zero windows", leg.zero_windows)?;
    }
    out.push_str(")\n");
    Ok(())
}

fn write_list<T: Display>(out: &mut String, separator: &str, items: impl Iterator<Item = T>) -> fmt::Result {
    for (index, item) in items.enumerate() {
        if index > 0 {
            out.push_str(separator);
        }
        write!(out, "{item}")?;
    }
    Ok(())
}

const CSV_HEADER: &str = "start_ns,client,client_port,listener,listener_address,local_address,local_port,\
    server,server_address,servers_tried,core,packets_to_server,bytes_to_server,packets_to_client,bytes_to_client,\
    client_cause,server_cause,flags,states,peer,peer_port,sample,class\n";

fn write_csv(out: &mut String, record: &SessionRecord, names: &NameTable, sample: u32) -> fmt::Result {
    let (listener, server) = (names.listener(record), names.server(record));
    write!(
        out,
        "{},{},{},",
        names.start_ns(record),
        record.client(),
        record.client_port
    )?;
    write_csv_text(out, listener.unwrap_or_default());
    write!(out, ",{},", OrEmpty(names.called(record)))?;
    write!(out, "{},{},", OrEmpty(names.local_address(record)), record.local_port)?;
    write_csv_text(out, server.map_or("", |named| &named.name));
    write!(
        out,
        ",{},{},",
        OrEmpty(server.map(|named| named.address)),
        record.servers_tried()
    )?;
    write!(
        out,
        "{},{},{},",
        record.core,
        record.packets_to_server,
        record.bytes_to_server()
    )?;
    write!(out, "{},{},", record.packets_to_client, record.bytes_to_client())?;
    write!(
        out,
        "{},{},",
        record.cause(Side::Client).name(),
        record.cause(Side::Server).name()
    )?;
    write_list(out, ";", flag_names(record))?;
    out.push(',');
    let change = |change: crate::record::StateChange| {
        format!(
            "{}:{}@{}",
            change.side.name(),
            change.state.name(),
            change.after.as_micros()
        )
    };
    write_list(out, ";", record.changes().map(change))?;
    let peer = record.peer();
    let (address, port) = (peer.map(|(address, _)| address), peer.map(|(_, port)| port));
    let class = names.class(record).unwrap_or_default();
    writeln!(out, ",{},{},{sample},{class}", OrEmpty(address), OrEmpty(port))
}

struct OrEmpty<T>(Option<T>);

impl<T: Display> Display for OrEmpty<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.as_ref().map_or(Ok(()), |value| value.fmt(f))
    }
}

/// RFC 4180 2.6 and 2.7: fields with commas, quotes or line breaks are quoted, quotes in them doubled.
fn write_csv_text(out: &mut String, text: &str) {
    if !text.contains([',', '"', '\n', '\r']) {
        out.push_str(text);
        return;
    }
    out.push('"');
    for char in text.chars() {
        if char == '"' {
            out.push('"');
        }
        out.push(char);
    }
    out.push('"');
}

fn write_json(out: &mut String, record: &SessionRecord, names: &NameTable, sample: u32) -> fmt::Result {
    let (listener, server) = (names.listener(record), names.server(record));
    write!(
        out,
        "{{\"start_ns\":{},\"client\":\"{}\"",
        names.start_ns(record),
        record.client()
    )?;
    write!(out, ",\"client_port\":{}", record.client_port)?;
    if let Some((address, port)) = record.peer() {
        write!(out, ",\"peer\":\"{address}\",\"peer_port\":{port}")?;
    }
    write_json_named(out, "listener", listener, names.called(record))?;
    match names.local_address(record) {
        Some(address) => write!(out, ",\"local_address\":\"{address}\"")?,
        None => out.push_str(",\"local_address\":null"),
    }
    write!(out, ",\"local_port\":{}", record.local_port)?;
    let (name, address) = (server.map(|of| &*of.name), server.map(|of| of.address));
    write_json_named(out, "server", name, address)?;
    write!(
        out,
        ",\"servers_tried\":{},\"core\":{}",
        record.servers_tried(),
        record.core
    )?;
    write!(out, ",\"packets_to_server\":{}", record.packets_to_server)?;
    write!(out, ",\"bytes_to_server\":{}", record.bytes_to_server())?;
    write!(out, ",\"packets_to_client\":{}", record.packets_to_client)?;
    write!(out, ",\"bytes_to_client\":{}", record.bytes_to_client())?;
    write!(out, ",\"client_cause\":\"{}\"", record.cause(Side::Client).name())?;
    write!(
        out,
        ",\"server_cause\":\"{}\",\"flags\":[",
        record.cause(Side::Server).name()
    )?;
    write_list(out, ",", flag_names(record).map(|name| format!("\"{name}\"")))?;
    out.push_str("],\"states\":[");
    let change = |change: crate::record::StateChange| {
        let (side, state, micros) = (change.side.name(), change.state.name(), change.after.as_micros());
        format!("{{\"side\":\"{side}\",\"state\":\"{state}\",\"us\":{micros}}}")
    };
    write_list(out, ",", record.changes().map(change))?;
    out.push(']');
    if let Some(legs) = &record.legs {
        write_json_legs(out, legs)?;
    }
    // Names of classes are letters, digits, and what needs no escape.
    if let Some(class) = names.class(record) {
        write!(out, ",\"class\":\"{class}\"")?;
    }
    if sample > 1 {
        write!(out, ",\"sample\":{sample}")?;
    }
    out.push_str("}\n");
    Ok(())
}

fn write_json_legs(out: &mut String, legs: &Legs) -> fmt::Result {
    write!(out, ",\"legs_of_one_in\":{}", legs.one_in)?;
    for (key, leg) in [("client_leg", &legs.client), ("server_leg", &legs.server)] {
        write!(out, ",\"{key}\":{{\"segments\":{}", leg.segments)?;
        let LegFigures {
            retransmitted,
            out_of_order,
            duplicate,
            zero_windows,
            ..
        } = leg;
        write!(
            out,
            ",\"retransmitted\":{retransmitted},\"out_of_order\":{out_of_order}"
        )?;
        write!(out, ",\"duplicate\":{duplicate},\"zero_windows\":{zero_windows}")?;
        write!(out, ",\"rtts\":{}", leg.rtts)?;
        if leg.rtts > 0 {
            write!(
                out,
                ",\"rtt_us\":{},\"least_rtt_us\":{}",
                leg.smoothed_rtt, leg.least_rtt
            )?;
        }
        out.push('}');
    }
    Ok(())
}

fn write_json_named(out: &mut String, key: &str, name: Option<&str>, address: Option<SocketAddr>) -> fmt::Result {
    let (Some(name), Some(address)) = (name, address) else {
        return write!(out, ",\"{key}\":null,\"{key}_address\":null");
    };
    write!(out, ",\"{key}\":")?;
    write_json_text(out, name)?;
    write!(out, ",\"{key}_address\":\"{address}\"")
}

/// RFC 8259 7: quote, backslash and control characters must be escaped.
fn write_json_text(out: &mut String, text: &str) -> fmt::Result {
    out.push('"');
    for char in text.chars() {
        match char {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            control if u32::from(control) < 0x20 => write!(out, "\\u{:04x}", u32::from(control))?,
            other => out.push(other),
        }
    }
    out.push('"');
    Ok(())
}

fn flag_names(record: &SessionRecord) -> impl Iterator<Item = String> {
    let flags: RecordFlags = record.flags();
    flags
        .iter_names()
        .map(|(name, _)| name.to_ascii_lowercase())
        .collect::<Vec<_>>()
        .into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Cause, State};
    use e2d2::time::Instant;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    fn names(server: &str) -> NameTable {
        let named = |name: &str, address: &str| Named {
            name: name.to_owned(),
            address: address.parse().unwrap(),
        };
        NameTable {
            listeners: vec!["web".to_owned(), "web6".to_owned()],
            servers: vec![named(server, "[2001:db8:1::5]:8080")],
            local_addresses: ["2001:db8:1::1", "192.0.2.1", "2001:db8::1"]
                .map(|of| of.parse().unwrap())
                .to_vec(),
            classes: vec!["office".to_owned()],
            epoch_ns: 1_000,
        }
    }

    fn complete() -> SessionRecord {
        let at = |micros: u64| Instant::from_nanos(500 + micros * 1_000);
        let mut record = SessionRecord::new(at(0), IpAddr::from([10, 0, 0, 1]), 40_000, 0, 3);
        record.push_state(Side::Client, State::SynReceived, at(0));
        record.push_state(Side::Client, State::Established, at(31));
        record.push_state(Side::Server, State::SynSent, at(35));
        record.push_state(Side::Server, State::Established, at(60));
        record.push_state(Side::Server, State::FinWait1, at(90));
        record.push_state(Side::Client, State::Closed, at(95));
        (record.called_address, record.called_port) = (1, 80);
        (record.server, record.local_port) = (0, 5_000);
        record.note_server();
        (record.packets_to_server, record.packets_to_client) = (7, 6);
        record.set_bytes(16, 8);
        record.set_cause(Cause::PassiveClose);
        record.set_flags(RecordFlags::COOKIE | RecordFlags::PROXY_OUT);
        record
    }

    fn rejected() -> SessionRecord {
        let mut record = SessionRecord::new(Instant::ZERO, "2001:db8::7".parse().unwrap(), 1, 1, 0);
        (record.called_address, record.called_port) = (2, 80);
        record.set_cause(Cause::SelectorReject);
        record
    }

    fn written(format: RecordFormat, names: NameTable, records: &[SessionRecord]) -> String {
        let mut lines = RecordLines::new(format, Arc::new(names), 1);
        let mut text = lines.header().to_owned();
        records.iter().for_each(|record| text += lines.line(record));
        text
    }

    #[test]
    fn text_is_two_lines_per_record() {
        let text = written(RecordFormat::Text, names("s0"), &[complete(), rejected()]);
        let expected = "     0: (Client, 10.0.0.1:40000, web 192.0.2.1:80, [2001:db8:1::1]:5000, s0 [2001:db8:1::5]:8080, \
             7/16 to server, 6/8 to client, [SynReceived, Established, Closed], PassiveClose, 1500, [0, 31, 95])\n        \
             (Server, [SynSent, Established, FinWait1], ActiveClose, [35, 60, 90])\n     \
             1: (Client, [2001:db8::7]:1, web6 [2001:db8::1]:80, -, -, \
             0/0 to server, 0/0 to client, [], SelectorReject, 1000, [])\n        \
             (Server, [], Unknown, [])\n";
        assert_eq!(text, expected);
    }

    #[test]
    fn csv_has_a_header_and_quotes_names() {
        let text = written(RecordFormat::Csv, names("a,\"b\""), &[complete(), rejected()]);
        let mut lines = text.lines();
        let header: Vec<_> = lines.next().unwrap().split(',').collect();
        let rows: Vec<_> = lines.map(csv_fields).collect();
        assert!(rows.iter().all(|row| row.len() == header.len()), "{header:?} {rows:?}");
        let field = |row: usize, name: &str| {
            let column = header.iter().position(|column| *column == name).unwrap();
            rows[row][column].as_str()
        };
        assert_eq!(field(0, "server"), "a,\"b\"");
        assert_eq!(field(0, "server_address"), "[2001:db8:1::5]:8080");
        assert_eq!(field(0, "local_address"), "2001:db8:1::1");
        assert_eq!(field(0, "flags"), "cookie;proxy_out");
        assert_eq!(
            field(0, "states"),
            "Client:SynReceived@0;Client:Established@31;Server:SynSent@35;Server:Established@60;\
             Server:FinWait1@90;Client:Closed@95"
        );
        assert_eq!(
            (field(0, "bytes_to_server"), field(0, "packets_to_client")),
            ("16", "6")
        );
        assert_eq!((field(1, "server"), field(1, "local_address")), ("", ""));
        assert_eq!(
            (field(1, "client"), field(1, "client_cause")),
            ("2001:db8::7", "SelectorReject")
        );
    }

    /// An independent reading of RFC 4180 for one line.
    fn csv_fields(line: &str) -> Vec<String> {
        let (mut fields, mut field, mut quoted) = (Vec::new(), String::new(), false);
        let mut chars = line.chars().peekable();
        while let Some(char) = chars.next() {
            match char {
                '"' if quoted && chars.peek() == Some(&'"') => field.extend(chars.next()),
                '"' => quoted = !quoted,
                ',' if !quoted => fields.push(std::mem::take(&mut field)),
                other => field.push(other),
            }
        }
        fields.push(field);
        fields
    }

    #[test]
    fn json_lines_are_read_back_by_serde() {
        let text = written(RecordFormat::JsonLines, names("q\"\\\u{1}ü"), &[complete(), rejected()]);
        let values: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(
            values[0],
            json!({
                "start_ns": 1500, "client": "10.0.0.1", "client_port": 40000,
                "listener": "web", "listener_address": "192.0.2.1:80",
                "local_address": "2001:db8:1::1", "local_port": 5000,
                "server": "q\"\\\u{1}ü", "server_address": "[2001:db8:1::5]:8080",
                "servers_tried": 1, "core": 3,
                "packets_to_server": 7, "bytes_to_server": 16, "packets_to_client": 6, "bytes_to_client": 8,
                "client_cause": "PassiveClose", "server_cause": "ActiveClose", "flags": ["cookie", "proxy_out"],
                "states": [
                    {"side": "Client", "state": "SynReceived", "us": 0},
                    {"side": "Client", "state": "Established", "us": 31},
                    {"side": "Server", "state": "SynSent", "us": 35},
                    {"side": "Server", "state": "Established", "us": 60},
                    {"side": "Server", "state": "FinWait1", "us": 90},
                    {"side": "Client", "state": "Closed", "us": 95},
                ],
            })
        );
        assert_eq!(
            (&values[1]["server"], &values[1]["local_address"]),
            (&Value::Null, &Value::Null)
        );
    }

    #[test]
    fn legs_are_shown_where_they_were_watched() {
        let mut legs = Legs::new(std::num::NonZeroU32::new(64).unwrap());
        (legs.client.segments, legs.client.out_of_order, legs.client.zero_windows) = (5, 1, 2);
        (legs.server.segments, legs.server.retransmitted, legs.server.duplicate) = (9, 3, 1);
        [120, 200].into_iter().for_each(|rtt| legs.server.measure(rtt));
        let mut record = complete();
        record.legs = Some(legs);
        let text = written(RecordFormat::JsonLines, names("s"), &[record]);
        let value: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value["legs_of_one_in"], 64);
        assert_eq!(
            value["client_leg"],
            json!({"segments": 5, "retransmitted": 0, "out_of_order": 1, "duplicate": 0, "zero_windows": 2, "rtts": 0})
        );
        assert_eq!(
            value["server_leg"],
            json!({
                "segments": 9, "retransmitted": 3, "out_of_order": 0, "duplicate": 1, "zero_windows": 0,
                "rtts": 2, "rtt_us": 130, "least_rtt_us": 120,
            })
        );
        let text = written(RecordFormat::Text, names("s"), &[record]);
        let server =
            "rtt 130 of 2, least 120, 9 segments, 3 retransmitted, 0 out of order, 1 duplicate, 0 zero windows)\n";
        assert!(text.ends_with(server), "{text}");
    }

    #[test]
    fn transparent_connections_show_the_clients_address() {
        let mut record = complete();
        record.local_address = TRANSPARENT;
        let text = written(RecordFormat::JsonLines, names("s"), &[record]);
        assert_eq!(
            serde_json::from_str::<Value>(&text).unwrap()["local_address"],
            "10.0.0.1"
        );
    }

    #[test]
    fn who_spoke_for_the_client_is_shown_beside_it() {
        let mut record = complete();
        record.set_proxied_client("2001:db8::8".parse().unwrap(), 9);
        let text = written(RecordFormat::Text, names("s"), &[record]);
        assert!(
            text.contains("(Client, [2001:db8::8]:9, through 10.0.0.1:40000, web"),
            "{text}"
        );
        let csv = written(RecordFormat::Csv, names("s"), &[record]);
        assert!(csv.trim_end().ends_with(",10.0.0.1,40000,1,"), "{csv}");
        let json = written(RecordFormat::JsonLines, names("s"), &[record]);
        let value: Value = serde_json::from_str(&json).unwrap();
        assert_eq!(
            (&value["client"], &value["peer"], &value["peer_port"]),
            (&json!("2001:db8::8"), &json!("10.0.0.1"), &json!(40_000))
        );
    }

    #[test]
    fn unknown_indices_are_left_out_and_do_not_panic() {
        for format in [RecordFormat::Text, RecordFormat::Csv, RecordFormat::JsonLines] {
            let text = written(format, NameTable::default(), &[complete()]);
            assert!(text.contains("10.0.0.1") && !text.contains("web"), "{text}");
        }
    }

    #[test]
    fn format_names() {
        assert_eq!("csv".parse(), Ok(RecordFormat::Csv));
        assert_eq!("text".parse(), Ok(RecordFormat::Text));
        assert_eq!("jsonl".parse(), Ok(RecordFormat::JsonLines));
        let message = "xml".parse::<RecordFormat>().unwrap_err().to_string();
        assert_eq!(
            message,
            "unknown record format \"xml\": expected \"text\", \"csv\" or \"jsonl\""
        );
    }

    proptest! {
        #[test]
        fn any_name_survives_csv_and_json(name in "[^\r\n]*") {
            let json = written(RecordFormat::JsonLines, names(&name), &[complete()]);
            prop_assert_eq!(json.lines().count(), 1);
            let value: Value = serde_json::from_str(&json).unwrap();
            prop_assert_eq!(value["server"].as_str(), Some(name.as_str()));
            let csv = written(RecordFormat::Csv, names(&name), &[complete()]);
            let row = csv_fields(csv.strip_suffix('\n').unwrap().split_once('\n').unwrap().1);
            prop_assert_eq!(&row[7], &name);
        }
    }
}
