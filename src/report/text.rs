//! The text form: what is zero is left out, but for the TCP counters.

use std::fmt;

use super::{Buffers, CounterGroup, PortReport, Report, ReportedServerCaps, ServerReport, TCP_CLIENT, TCP_SERVER};

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "proxyengine {}, up {:.1} s",
            self.version,
            self.uptime_ms as f64 / 1e3
        )?;
        writeln!(
            f,
            "records {}  lost {}  open connections {}  next hops {}/{}",
            self.records, self.records_lost, self.connections_open, self.next_hops.resolved, self.next_hops.total
        )?;
        if self.log_lost > 0 {
            writeln!(f, "log lines lost {}", self.log_lost)?;
        }
        for server in &self.servers {
            server.fmt(f)?;
        }
        self.fmt_tcp(f)?;
        for (name, group) in self.counters.iter() {
            if ![TCP_CLIENT, TCP_SERVER].contains(&name) {
                fmt_nonzero(f, name, group)?;
            }
        }
        for core in &self.cores {
            let rounds = core.busy_rounds.max(1);
            writeln!(
                f,
                "core {}: {} busy rounds of {} cycles, {} idle, {} open",
                core.core,
                core.busy_rounds,
                core.busy_cycles / rounds,
                core.idle_rounds,
                core.connections_open
            )?;
        }
        for port in &self.ports {
            port.fmt(f)?;
        }
        self.buffers.fmt(f)
    }
}

impl Report {
    fn fmt_tcp(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (client, server) = (self.counters.group(TCP_CLIENT), self.counters.group(TCP_SERVER));
        let (Some(client), Some(server)) = (client, server) else {
            return Ok(());
        };
        writeln!(f, "{:14}{:>14}{:>14}", "", "client", "server")?;
        for (name, count) in client.iter() {
            writeln!(f, "{name:14}{count:>14}{:>14}", server.count(name).unwrap_or(0))?;
        }
        Ok(())
    }
}

impl fmt::Display for ServerReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.abilities {
            Some(abilities) => writeln!(f, "server {}: {abilities}", self.name),
            None => writeln!(f, "server {}: not heard of", self.name),
        }
    }
}

impl fmt::Display for ReportedServerCaps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MSS {}, ", self.mss)?;
        match self.window_scale {
            Some(shift) => write!(f, "window scale {shift}, ")?,
            None => write!(f, "no window scale, ")?,
        }
        let with = |is_there: bool| if is_there { "" } else { "no " };
        write!(
            f,
            "{}SACK, {}timestamps, window {}",
            with(self.sack),
            with(self.timestamps),
            self.window
        )
    }
}

impl fmt::Display for PortReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "port {}: rx {} packets {} bytes, tx {} packets {} bytes, missed {}, no buffer {}, rx errors {}, tx errors {}, link {} ({} times down){}",
            self.name,
            self.rx_packets,
            self.rx_bytes,
            self.tx_packets,
            self.tx_bytes,
            self.rx_missed,
            self.rx_no_buffer,
            self.rx_errors,
            self.tx_errors,
            match self.link_up {
                Some(true) => "up",
                Some(false) => "down",
                None => "unknown",
            },
            self.link_downs,
            if self.removed { ", device taken away" } else { "" }
        )
    }
}

impl fmt::Display for Buffers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (before, after) = (self.available_before, self.available_after);
        write!(f, "buffers {}: {before} free before, {after} free ", self.capacity)?;
        f.write_str(if self.leaked.is_some() { "after" } else { "now" })?;
        if self.kept_by_driver > 0 {
            write!(f, ", {} kept by the driver", self.kept_by_driver)?;
        }
        match self.leaked {
            None => writeln!(f),
            Some(0) => writeln!(f, ", none lost"),
            Some(leaked) => writeln!(f, ", {leaked} LOST"),
        }
    }
}

fn fmt_nonzero(f: &mut fmt::Formatter<'_>, name: &str, group: &CounterGroup) -> fmt::Result {
    let nonzero: Vec<_> = group.iter().filter(|(_, count)| *count != 0).collect();
    if nonzero.is_empty() {
        return Ok(());
    }
    writeln!(f, "{name}")?;
    for (name, count) in nonzero {
        writeln!(f, "  {name:28}{count:>14}")?;
    }
    Ok(())
}
