//! The connections of which a capture knows something, and what is kept of them: both have bounds.
//!
//! Whoever comes when all places are taken has another forgotten, as [`Standing`] says, of those the oldest. Where too much is kept the
//! oldest lose what is kept of them; strangers are forgotten with it. Frames that were kept and are forgotten are lost, and counted by their interface.

use std::collections::{HashMap, VecDeque};

use super::connection::{Connection, Kept, Standing};
use super::groups::Key;
use super::packets::Written;

/// How much there is place for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// Connections of which something is known at a time, some 300 bytes each.
    pub(super) connections: usize,
    /// Groups that are kept of all connections together.
    pub(super) groups: usize,
    /// Bytes that these take.
    pub(super) bytes: usize,
}

impl Bounds {
    /// Those of a capture: headers of 65 536 groups are kept, some 1 KB each, or fewer of longer frames.
    pub(super) const CAPTURE: Self = Self {
        connections: 65_536,
        groups: 65_536,
        bytes: 64 << 20,
    };
}

/// What had to be forgotten.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Forgotten {
    /// Connections of which something was kept.
    pub(super) connections: u64,
    /// The frames.
    pub(super) frames: u64,
}

pub(super) struct Places {
    bounds: Bounds,
    connections: HashMap<Key, Connection>,
    /// By standing: keys in the order in which connections have come to stand so, with their numbers. Those that stand otherwise
    /// by now, or are gone, have left a key behind.
    order: [VecDeque<(Key, u64)>; Standing::ALL.len()],
    numbers: u64,
    groups: usize,
    bytes: usize,
    forgotten: Forgotten,
    /// By interface: frames that were forgotten, and that no packet has told of yet.
    untold: Vec<u64>,
}

impl Places {
    pub(super) fn new(bounds: Bounds, interfaces: usize) -> Self {
        Self {
            bounds,
            connections: HashMap::new(),
            order: Default::default(),
            numbers: 0,
            groups: 0,
            bytes: 0,
            forgotten: Forgotten::default(),
            untold: vec![0; interfaces],
        }
    }

    pub(super) fn get(&self, key: &Key) -> Option<&Connection> {
        self.connections.get(key)
    }

    /// The connection of a key; one that is not known gets a place.
    pub(super) fn enter(&mut self, key: Key) -> &mut Connection {
        if !self.connections.contains_key(&key) {
            if self.connections.len() >= self.bounds.connections {
                self.forget_one();
            }
            self.numbers += 1;
            self.line_up(Standing::Stranger, (key, self.numbers));
        }
        let number = self.numbers;
        (self.connections.entry(key)).or_insert_with(|| Connection::new(number))
    }

    /// Keeps the packets of a group.
    pub(super) fn keep(&mut self, key: &Key, packets: Vec<Written>) {
        if let Some(connection) = self.connections.get_mut(key) {
            let bytes = packets.iter().map(Written::size).sum();
            connection.kept.push_back(Kept { packets, bytes });
            self.groups += 1;
            self.bytes += bytes;
        }
    }

    /// Keeps no more than so many groups of a connection, the last ones.
    pub(super) fn keep_last(&mut self, key: &Key, most: usize) {
        let Some(connection) = self.connections.get_mut(key) else {
            return;
        };
        while connection.kept.len() > most
            && let Some(kept) = connection.kept.pop_front()
        {
            self.groups -= 1;
            self.bytes -= kept.bytes;
        }
    }

    /// What is kept of a connection, which is kept no longer.
    pub(super) fn take_kept(&mut self, key: &Key) -> impl Iterator<Item = Written> + use<> {
        let kept = self
            .connections
            .get_mut(key)
            .map(|connection| std::mem::take(&mut connection.kept));
        let kept = kept.unwrap_or_default();
        self.groups -= kept.len();
        self.bytes -= kept.iter().map(|kept| kept.bytes).sum::<usize>();
        kept.into_iter().flat_map(|kept| kept.packets)
    }

    /// Something has become of a connection: it is forgotten as it stands now. What is kept too much is forgotten.
    pub(super) fn note(&mut self, key: Key) {
        if let Some(connection) = self.connections.get_mut(&key) {
            let (before, number) = (connection.standing, connection.number);
            connection.standing = connection.standing();
            if connection.standing != before {
                let standing = connection.standing;
                self.line_up(standing, (key, number));
            }
        }
        self.shed();
    }

    /// Forgets a connection, and with it what is kept of it.
    pub(super) fn forget(&mut self, key: &Key) {
        self.lose_kept(key);
        self.connections.remove(key);
    }

    pub(super) fn forgotten(&self) -> Forgotten {
        self.forgotten
    }

    /// Frames of an interface that were forgotten since this was asked last.
    pub(super) fn take_untold(&mut self, interface: u32) -> u64 {
        self.untold.get_mut(interface as usize).map_or(0, std::mem::take)
    }

    /// Keys and connections that there are, however little of them.
    #[cfg(test)]
    pub(super) fn size(&self) -> usize {
        self.connections.len() + self.order.iter().map(VecDeque::len).sum::<usize>()
    }

    fn line_up(&mut self, standing: Standing, who: (Key, u64)) {
        let line = &mut self.order[standing as usize];
        if line.len() >= 2 * self.bounds.connections {
            let connections = &self.connections;
            line.retain(|(key, number)| stands(connections, standing, key, *number));
        }
        line.push_back(who);
    }

    fn forget_one(&mut self) {
        for standing in Standing::ALL {
            while let Some((key, number)) = self.order[standing as usize].pop_front() {
                if stands(&self.connections, standing, &key, number) {
                    return self.forget(&key);
                }
            }
        }
    }

    /// Has the oldest lose what is kept of them, as long as that is too much of all; of strangers nothing else is known, so they are
    /// forgotten. Those that are over have nothing kept.
    fn shed(&mut self) {
        for standing in [Standing::Stranger, Standing::Open] {
            for _ in 0..self.order[standing as usize].len() {
                if self.groups <= self.bounds.groups && self.bytes <= self.bounds.bytes {
                    return;
                }
                let Some((key, number)) = self.order[standing as usize].pop_front() else {
                    break;
                };
                if !stands(&self.connections, standing, &key, number) {
                    continue;
                }
                match standing {
                    Standing::Stranger => self.forget(&key),
                    _ => {
                        self.lose_kept(&key);
                        self.order[standing as usize].push_back((key, number));
                    }
                }
            }
        }
    }

    fn lose_kept(&mut self, key: &Key) {
        let mut frames = 0;
        for packet in self.take_kept(key) {
            frames += 1;
            if let Some(untold) = self.untold.get_mut(packet.interface as usize) {
                *untold += 1;
            }
        }
        self.forgotten.frames += frames;
        self.forgotten.connections += u64::from(frames > 0);
    }
}

fn stands(connections: &HashMap<Key, Connection>, standing: Standing, key: &Key, number: u64) -> bool {
    let connection = connections.get(key);
    connection.is_some_and(|of| of.number == number && of.standing == standing)
}
