//! What is assumed when the file says nothing, and the bounds of what it may say: all in this one place.

use std::ops::RangeInclusive;
use std::time::Duration;

const MINUTE: u64 = 60;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;

/// `[engine] name`: the prefix of DPDK's files.
pub(super) const NAME: &str = "proxyengine";
/// `[engine] cores`: core 0 is left to the operating system.
pub(super) const CORES: &[i64] = &[1];
/// Cores as Linux numbers them; 8192 is the largest `CONFIG_NR_CPUS`.
pub(super) const CORE: RangeInclusive<i64> = 0..=8191;
/// `[engine] memory_mib`: room for the default number of buffers of 2 KiB, and for rings.
pub(super) const MEMORY_MIB: i64 = 256;
/// DPDK does not start with less than 64 MiB.
pub(super) const MEMORY_MIB_RANGE: RangeInclusive<i64> = 64..=1 << 20;
/// `[engine] buffers` per core: two ports of 1024 + 1024 descriptors, and three times as many again in flight.
pub(super) const BUFFERS: i64 = 16_384;
/// The upper bound is 16 GiB of buffers per core.
pub(super) const BUFFERS_RANGE: RangeInclusive<i64> = 512..=1 << 23;
/// Buffers needed beyond the descriptors of all ports: bursts in hand, per-core caches of DPDK (2 × 512).
pub(super) const BUFFERS_IN_FLIGHT: i64 = 1_280;
/// `[engine] max_connections` per core: 64 MiB of connections at 256 B each.
pub(super) const MAX_CONNECTIONS: i64 = 262_144;
/// Slots are numbered with 28 bits; 24 are 4 GiB of connections.
pub(super) const MAX_CONNECTIONS_RANGE: RangeInclusive<i64> = 1..=1 << 24;
/// `[engine] reassembly_memory` in MiB per core: 109 140 requests of up to 512 bytes, a million a second to servers 100 ms away.
pub(super) const REASSEMBLY_MEMORY: i64 = 64;
/// A MiB has room for a handful of the longest requests; 8 GiB are what ten million short ones take.
pub(super) const REASSEMBLY_MEMORY_RANGE: RangeInclusive<i64> = 1..=8192;
/// `[engine] reassembly_quota`: four sources are needed to bring the memory to the mark at which anything gives way.
pub(super) const REASSEMBLY_QUOTA: i64 = 25;
/// 100 is for those behind a balancer, where one address stands for all clients.
pub(super) const REASSEMBLY_QUOTA_RANGE: RangeInclusive<i64> = 1..=100;
/// `[engine] replies_per_second`: what a core sends to strangers at most; Linux limits its ICMP to 1000 as well.
pub(super) const REPLIES_PER_SECOND: i64 = 1_000;
/// 0 is silence.
pub(super) const REPLIES_PER_SECOND_RANGE: RangeInclusive<i64> = 0..=10_000_000;
/// `[engine] overload_after`: a core that was away for a while has emptied a ring of 1024 packets again in half of this.
pub(super) const OVERLOAD_AFTER: Duration = Duration::from_millis(1);
/// 0 is never; a second of full queues is more than any peer waits.
pub(super) const OVERLOAD_AFTER_RANGE: RangeInclusive<Duration> = Duration::ZERO..=Duration::from_secs(1);
/// `[engine] leg_sample`: seven bytes of memory for each connection there may be, and too few to be felt.
pub(super) const LEG_SAMPLE: i64 = 64;
/// 0 is none; 1 is for tests and quiet engines.
pub(super) const LEG_SAMPLE_RANGE: RangeInclusive<i64> = 0..=1_000_000;
/// `[engine] drain`.
pub(super) const DRAIN: Duration = Duration::from_secs(2);
/// Longest drain: an operator who wants more leaves the engine running.
pub(super) const DRAIN_RANGE: RangeInclusive<Duration> = Duration::ZERO..=Duration::from_secs(HOUR);

/// `[[port]] mtu`.
pub(super) const MTU: i64 = 1500;
/// 576: the smallest datagram every IPv4 host accepts (RFC 791 3.1); 9000: the usual jumbo frame.
pub(super) const MTU_RANGE: RangeInclusive<i64> = 576..=9000;
/// RFC 8200 section 5: a link that carries IPv6 has an MTU of 1280 or more.
pub(super) const MTU_IPV6: i64 = 1280;
/// `[[port]] rx_descriptors` and `tx_descriptors`.
pub(super) const DESCRIPTORS: i64 = 1024;
/// What ixgbe and i40e accept both.
pub(super) const DESCRIPTORS_RANGE: RangeInclusive<i64> = 64..=4096;
/// i40e wants multiples of 32, ixgbe of 8.
pub(super) const DESCRIPTORS_STEP: i64 = 32;
/// 802.1Q: 0 means "no VLAN", 4095 is reserved.
pub(super) const VLAN_RANGE: RangeInclusive<i64> = 1..=4094;
/// Frames a second to the kernel and from it: 120 Mbit/s of full frames, and of a flood what costs a Linux core a few percent.
pub(super) const KERNEL_RATE: i64 = 10_000;
/// A TAP takes no more than a million by one thread.
pub(super) const KERNEL_RATE_RANGE: RangeInclusive<i64> = 1..=1_000_000;
/// Ports of one engine: the index is one byte, and a core polls each of them in every round.
pub(super) const PORTS: usize = 32;

/// `[[pool]] servers[].weight`.
pub(super) const WEIGHT: i64 = 1;
/// Enough for a proportion; the sum over the largest pool stays below 2^25.
pub(super) const WEIGHT_RANGE: RangeInclusive<i64> = 1..=256;
/// `[[pool]] local_ports`: all that need no privilege on a host (RFC 6335: 0–1023 are the system ports).
pub(super) const LOCAL_PORTS: RangeInclusive<u16> = 1024..=65535;
/// `[[pool]] syn_retry`: RFC 6298 2.1, the first retransmission after one second.
pub(super) const SYN_RETRY: Duration = Duration::from_secs(1);
/// Shorter than any round trip makes no sense; longer than RFC 6298's maximum neither.
pub(super) const SYN_RETRY_RANGE: RangeInclusive<Duration> = Duration::from_millis(10)..=Duration::from_secs(MINUTE);
/// `[[pool]] retries`: a server whose time is over by four lost SYNs or SYN-ACKs is there the next time. Where one packet in
/// twenty is lost, four fail once in ten thousand connections, and eight once in a hundred million.
pub(super) const RETRIES: i64 = 1;
/// Each takes as long as the first try, and no client waits for ever.
pub(super) const RETRIES_RANGE: RangeInclusive<i64> = 0..=16;

/// `[[pool]] servers[].max_connections`: as many as one core can hold.
pub(super) const SERVER_CONNECTIONS_RANGE: RangeInclusive<i64> = 1..=1 << 24;
/// `hash.balance_factor`: per cent of the mean; 100 is nobody above it, which leaves no order.
pub(super) const BALANCE_FACTOR_RANGE: RangeInclusive<i64> = 101..=10_000;
/// `slow_start`: caches are warm after an hour.
pub(super) const SLOW_START_RANGE: RangeInclusive<Duration> = Duration::ZERO..=Duration::from_secs(3600);
/// `limit.connections`: as many as places of a client's counter hold.
pub(super) const LIMIT_CONNECTIONS_RANGE: RangeInclusive<i64> = 1..=1 << 26;
/// `limit.rate`: from one in a quarter of an hour to more than a machine can do.
pub(super) const LIMIT_RATE_RANGE: RangeInclusive<f64> = 0.001..=100_000_000.0;
/// `limit.burst`.
pub(super) const LIMIT_BURST_RANGE: RangeInclusive<i64> = 1..=100_000_000;
/// `client_limit.prefix_v4`, and the most: an address.
pub(super) const LIMIT_PREFIX_V4: (i64, i64) = (32, 32);
/// `client_limit.prefix_v6`, and the most: what a provider gives a subscriber at least (RFC 6177 2).
pub(super) const LIMIT_PREFIX_V6: (i64, i64) = (64, 128);
/// `[[pool]] eject_after`: one failure may be a restart or a lost segment.
pub(super) const EJECT_AFTER: i64 = 3;
/// 0 is never.
pub(super) const EJECT_AFTER_RANGE: RangeInclusive<i64> = 0..=1000;
/// `[[pool]] eject_for`: long enough for a restart; with each further failure it doubles.
pub(super) const EJECT_FOR: Duration = Duration::from_secs(5);
/// Longer is for an operator to decide, who takes the server out of the file.
pub(super) const EJECT_FOR_RANGE: RangeInclusive<Duration> = Duration::from_millis(10)..=Duration::from_secs(HOUR);

/// `[[pool]] eject_most`: what calls say is seldom wrong, and one server is left in any case.
pub(super) const EJECT_MOST: i64 = 100;
/// In percent.
pub(super) const EJECT_MOST_RANGE: RangeInclusive<i64> = 1..=100;

/// `check.interval`: what is dead is out after a second and a third; ten thousand servers cost a core half a percent.
pub(super) const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// `check.fast_interval`: a tenth of that, and as long as a near server may take.
pub(super) const CHECK_FAST_INTERVAL: Duration = Duration::from_millis(100);
/// A tick of the wheel is a millisecond.
pub(super) const CHECK_INTERVAL_RANGE: RangeInclusive<Duration> = Duration::from_millis(10)..=Duration::from_secs(HOUR);
/// `check.timeout`.
pub(super) const CHECK_TIMEOUT_RANGE: RangeInclusive<Duration> =
    Duration::from_millis(10)..=Duration::from_secs(MINUTE);
/// `check.rise`: one passed check may be a host that is starting.
pub(super) const CHECK_RISE: i64 = 2;
/// `check.fall`: one that failed may be a lost segment, and two the burst of losses that it was in.
pub(super) const CHECK_FALL: i64 = 3;
/// `check.rise` and `check.fall`.
pub(super) const CHECK_TIMES_RANGE: RangeInclusive<i64> = 1..=100;

/// `check.port`.
pub(super) const CHECK_PORT_RANGE: RangeInclusive<i64> = 1..=65535;
/// `check.statuses`: what a browser would not show as an error.
pub(super) const CHECK_STATUSES: RangeInclusive<u16> = 200..=399;
/// `check.user`: nobody.
pub(super) const CHECK_USER: &str = "proxyengine";
/// The longest text of a check in bytes: what fits into one segment.
pub(super) const CHECK_TEXT: usize = 1024;

/// `listener[].rules[].prefix`: what tells protocols apart is in their first bytes.
pub(super) const PREFIX_MAX: usize = 256;
/// `listener[].rules[].regex_bytes`: what one segment holds, so that a rule for another protocol is not kept waiting.
pub(super) const REGEX_BYTES: i64 = 1024;
/// The upper bound is what is collected of a first payload.
pub(super) const REGEX_BYTES_RANGE: RangeInclusive<i64> = 1..=splice::callbacks::MAX_FIRST_PAYLOAD as i64;

/// `[timeouts] select`.
pub(super) const SELECT: Duration = Duration::from_secs(30);
/// `[timeouts] connect`: SYNs at 0, 1, 3 and 7 s, and three seconds for the answer to the last. With three SYNs, one
/// connection in a thousand would be refused where one packet in twenty is lost.
pub(super) const CONNECT: Duration = Duration::from_secs(10);
/// `[timeouts] idle`: RFC 5382 REQ-5, not less than 2 hours 4 minutes.
pub(super) const IDLE: Duration = Duration::from_secs(2 * HOUR + 4 * MINUTE);
/// `[timeouts] half_close`: one side may legitimately only receive for as long as an idle connection may live.
pub(super) const HALF_CLOSE: Duration = IDLE;
/// `[timeouts] time_wait`.
pub(super) const TIME_WAIT: Duration = Duration::from_secs(4);
/// RFC 9293 3.6.1: twice the maximum segment lifetime of two minutes.
pub(super) const TIME_WAIT_RANGE: RangeInclusive<Duration> = Duration::ZERO..=Duration::from_secs(4 * MINUTE);
/// Timers that end something: at least ten ticks of the wheel, at most thirty days.
pub(super) const TIMEOUT_RANGE: RangeInclusive<Duration> = Duration::from_millis(10)..=Duration::from_secs(30 * DAY);

/// `[syn_ack] window_scale`: what Linux offers with its default of 6 MiB of receive memory.
pub(super) const WINDOW_SCALE: i64 = 7;
/// RFC 7323 2.3.
pub(super) const WINDOW_SCALE_RANGE: RangeInclusive<i64> = 0..=14;
/// `[syn_ack] window`: the largest first payload that is collected, 16 KiB.
pub(super) const WINDOW: i64 = 16_384;
/// At least one segment of the default MSS (RFC 9293 3.7.1).
pub(super) const WINDOW_RANGE: RangeInclusive<i64> = 536..=16_384;
/// `[syn_ack] mss`: 88 is the least Linux accepts of a peer (`net.ipv4.tcp_min_snd_mss` less options); 8960 fits MTU 9000.
pub(super) const MSS_RANGE: RangeInclusive<i64> = 88..=8960;

/// `[dns] timeout`: a name server that has to ask others mostly answers in less.
pub(super) const DNS_TIMEOUT: Duration = Duration::from_secs(1);
/// Longer than a minute is no answer.
pub(super) const DNS_TIMEOUT_RANGE: RangeInclusive<Duration> = Duration::from_millis(10)..=Duration::from_secs(MINUTE);
/// `[dns] retries`: a lost datagram of question and answer each.
pub(super) const DNS_RETRIES: i64 = 2;
/// Each takes `timeout`.
pub(super) const DNS_RETRIES_RANGE: RangeInclusive<i64> = 0..=16;

/// `[[records]] sample`: all connections.
pub(super) const SAMPLE: i64 = 1;
/// One in a million leaves one a second of what a core can do.
pub(super) const SAMPLE_RANGE: RangeInclusive<i64> = 1..=1_000_000;
/// `[[records]] longer_than`: stamps of records end at 12.7 days.
pub(super) const LONGER_THAN_RANGE: RangeInclusive<Duration> = Duration::ZERO..=Duration::from_secs(12 * DAY);
/// `[[records]] rotate_mib`: a TiB is more than anybody reads.
pub(super) const ROTATE_MIB_RANGE: RangeInclusive<i64> = 1..=1 << 20;
/// `[[records]] rotate_every`: files are looked at once a second.
pub(super) const ROTATE_EVERY_RANGE: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(366 * DAY);
/// `[[records]] rotate_keep`: what was there before the start is kept.
pub(super) const ROTATE_KEEP: i64 = 1;
/// Each is renamed at each turn.
pub(super) const ROTATE_KEEP_RANGE: RangeInclusive<i64> = 1..=99;
