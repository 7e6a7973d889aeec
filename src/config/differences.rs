//! What differs between the version of the file that an engine runs with and another: to be shown, and to be refused.

use super::error::{ConfigError, Problem};
use super::records::Destination;
use super::source::{At, Source};
use super::{Config, Standing};
use crate::privileges::folder_of;
use splice::difference::{MOST_LISTENERS, MOST_SERVERS};
use std::path::{Path, PathBuf};

/// Addresses of ours that there can be: numbers from here on mean something else.
const MOST_ADDRESSES: usize = splice::transparent_sources::FIRST as usize;

/// Classes that there can be: each has a number of two bytes.
const MOST_CLASSES: usize = 1 << 16;

impl Config {
    /// What another version changes that goes on from this one: a line for each listener, pool, server, list and class, and for
    /// `[engine]`, `[syn_ack]`, `[records]`, `[log]`, `[dns]` and what is live of `[control]`.
    pub fn lines_of_difference(&self, new: &Config) -> String {
        let mut lines = String::new();
        let mut tell = |what: &str, name: &str, stands: [Option<Standing>; 2], is_same: bool| {
            let [before, now] = stands.map(|standing| standing == Some(Standing::InFile));
            let sign = match (before, now) {
                (false, true) => '+',
                (true, false) => '-',
                (true, true) if !is_same => '~',
                _ => return,
            };
            lines.push_str(&format!("{sign} {what} {name}\n"));
        };
        for (index, of) in new.listeners.iter().enumerate() {
            let before = self.listeners.get(index);
            let stands = [before.map(|of| of.standing), Some(of.standing)];
            tell("listener", &of.name, stands, before == Some(of));
        }
        for (index, of) in new.pools.iter().enumerate() {
            let before = self.pools.get(index);
            let stands = [before.map(|of| of.standing), Some(of.standing)];
            tell("pool", &of.name, stands, before == Some(of));
        }
        for (index, of) in new.servers.iter().enumerate() {
            let before = self.servers.get(index);
            let stands = [before.map(|of| of.standing), Some(of.standing)];
            let is_same = before.is_some_and(|before| before.says_the_same(of));
            tell("server", &format!("{} {}", of.name, of.address), stands, is_same);
        }
        let in_file = |is_there: bool| is_there.then_some(Standing::InFile);
        for of in &new.lists {
            let before = self.lists.iter().find(|before| before.name == of.name);
            let stands = [in_file(before.is_some()), in_file(true)];
            tell(
                "list",
                &of.name,
                stands,
                before.is_some_and(|before| before.holds_the_same(of)),
            );
        }
        for of in self
            .lists
            .iter()
            .filter(|of| new.lists.iter().all(|new| new.name != of.name))
        {
            tell("list", &of.name, [in_file(true), None], false);
        }
        // A class keeps its number when the file has it no longer.
        for (index, of) in new.classes.iter().enumerate() {
            let before = self.classes.get(index);
            tell(
                "class",
                &of.name,
                [in_file(before.is_some()), in_file(true)],
                before == Some(of),
            );
        }
        let sections = [
            ("engine", self.engine != new.engine),
            ("syn_ack", self.syn_ack != new.syn_ack),
            ("records", self.records != new.records),
            ("log", self.log_level != new.log_level),
            ("dns", self.dns != new.dns),
            ("control", self.timed_servers != new.timed_servers),
        ];
        for (name, _) in sections.iter().filter(|(_, differs)| *differs) {
            lines.push_str(&format!("~ [{name}]\n"));
        }
        lines
    }

    /// Complains about files of records where the engine may not write: that was settled at its start.
    fn refuse_other_folders(&self, source: &mut Source<'_>, new: &Config) {
        let Some(writable) = &self.writable else { return };
        let absolute = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        let writable: Vec<PathBuf> = writable.iter().map(|folder| absolute(folder)).collect();
        for sink in &new.records {
            if let Destination::File(path) = &sink.to
                && !writable
                    .iter()
                    .any(|folder| absolute(&folder_of(path)).starts_with(folder))
            {
                let complaint = format!(
                    "has the file {} in a folder that was not named at the start, and the engine may not write there: it \
                     needs a restart",
                    path.display()
                );
                source.complain(&At::root().key("records"), complaint);
            }
        }
    }

    /// Complains about what differs and is not a listener, a pool or a server.
    pub(super) fn refuse_other_parts(&self, source: &mut Source<'_>, new: &Config) {
        let mut refuse = |section: &str, key: &str, differs: bool| {
            if differs {
                needs_restart(source, &At::root().key(section).key(key));
            }
        };
        let (old, engine) = (&self.engine, &new.engine);
        refuse("engine", "name", old.name != engine.name);
        refuse("engine", "cores", old.cores != engine.cores);
        refuse("engine", "memory_mib", old.memory_mib != engine.memory_mib);
        refuse("engine", "idle", old.idle != engine.idle);
        refuse(
            "engine",
            "replies_per_second",
            old.replies_per_second != engine.replies_per_second,
        );
        // Memory for what is watched is taken at the start, for none if none is to be.
        refuse("engine", "leg_sample", old.leg_sample == 0 && engine.leg_sample > 0);
        refuse("engine", "overload_after", old.overload_after != engine.overload_after);
        refuse(
            "engine",
            "max_connections",
            old.max_connections != engine.max_connections,
        );
        refuse(
            "engine",
            "reassembly_memory",
            old.reassembly_memory != engine.reassembly_memory,
        );
        refuse(
            "engine",
            "reassembly_quota",
            old.reassembly_quota != engine.reassembly_quota,
        );
        refuse("engine", "buffers", old.buffers != engine.buffers);
        refuse("engine", "steering", old.steering != engine.steering);
        refuse("engine", "port_mask", old.port_mask != engine.port_mask);
        self.refuse_other_folders(source, new);
        if self.control != new.control {
            needs_restart(source, &At::root().key("control"));
        }
        if self.ports.len() != new.ports.len() {
            return needs_restart(source, &At::root().key("port"));
        }
        let ports = self.ports.iter().zip(&new.ports).enumerate();
        for (index, _) in ports.filter(|(_, (old, new))| old != new) {
            needs_restart(source, &At::root().key("port").index(index));
        }
        if self.routes != new.routes {
            needs_restart(source, &At::root().key("port"));
        }
    }

    /// # Errors
    /// There is more than can be numbered.
    pub(super) fn refuse_too_many(&self, name: &str) -> Result<(), ConfigError> {
        let too_many = |what, most| {
            let complaint =
                format!("more than {most} {what}, with those that connections still name; restart the engine");
            let problem = Problem {
                path: String::new(),
                line: None,
                complaint,
            };
            Err(ConfigError::new(name, vec![problem]))
        };
        if self.servers.len() > MOST_SERVERS {
            return too_many("servers", MOST_SERVERS);
        }
        if self.listeners.len().max(self.pools.len()) > MOST_LISTENERS {
            return too_many("listeners or pools", MOST_LISTENERS);
        }
        if self.classes.len() > MOST_CLASSES {
            return too_many("classes since the start", MOST_CLASSES);
        }
        if self.addresses().len() > MOST_ADDRESSES {
            return too_many("addresses since the start", MOST_ADDRESSES);
        }
        Ok(())
    }
}

fn needs_restart(source: &mut Source<'_>, at: &At) {
    source.complain(at, "has changed, which needs a restart");
}
