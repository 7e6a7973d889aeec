//! How DPDK ports spread over several queues, and what they say to rules. No device here has rules, so what a card would be told
//! is tested beside the code that builds it.

use std::io::Write;
use std::net::IpAddr;
use std::process::{Command, Stdio};

use e2d2::flow::{FlowError, FlowRule, MaskedPort, NicModel};
use e2d2::native::{DpdkPort, DpdkQueue, MbufPool, PortConfig, PortError};
use e2d2::port::PortId;
use e2d2::rss::{DEFAULT_KEY, Toeplitz};

use crate::namespace::skip;
use crate::support::{eal, pool, unique};

fn open(device: &str, queues: usize, key: &[u8]) -> Result<(DpdkPort, Vec<DpdkQueue>), PortError> {
    let pools: Vec<MbufPool> = (0..queues).map(|_| pool(1023, 1500)).collect();
    let config = PortConfig {
        rss_key: key.to_vec(),
        ..PortConfig::new(PortId(0), device.parse().expect("a device"))
    };
    DpdkPort::open(&eal(), &config, &pools.iter().collect::<Vec<_>>())
}

#[test]
fn every_queue_gets_its_share_of_the_redirection_table() {
    for (queues, shares) in [(2, vec![64, 64]), (3, vec![43, 43, 42]), (5, vec![26, 26, 26, 25, 25])] {
        let device = format!("net_null_{}", unique("r"));
        let (port, _queues) = open(&device, queues, &DEFAULT_KEY).expect("net_null");
        let rss = port.rss().expect("a table");
        assert_eq!(rss.shares(queues as u16), shares);
        assert!(rss.tcp_ipv4 && rss.tcp_ipv6);
    }
}

#[test]
fn the_key_is_set_and_read_back() {
    let key: Vec<u8> = (100..152).collect();
    let device = format!("net_null_{}", unique("k"));
    let (port, _queues) = open(&device, 2, &key).expect("net_null");
    let rss = port.rss().expect("a key");
    assert_eq!(rss.key, key[..40], "as much as the device has");
    let tuple = ([10, 0, 0, 1], [10, 0, 0, 2], 80, 40_000);
    let hash = |key: &[u8]| Toeplitz::new(key).tcp4(tuple.0, tuple.1, tuple.2, tuple.3);
    assert_eq!(hash(&rss.key), hash(&key));
}

#[test]
fn one_queue_spreads_nothing() {
    let (port, _queues) = open(&format!("net_null_{}", unique("o")), 1, &DEFAULT_KEY).expect("net_null");
    assert_eq!(port.rss(), None);
}

#[test]
fn devices_without_rules_say_so() {
    let rules = [0, 1].map(|queue| FlowRule {
        destination: IpAddr::from([10, 0, 0, queue as u8]),
        port: None,
        queue,
    });
    for driver in ["net_null_", "net_ring_"] {
        let device = format!("{driver}{}", unique("f"));
        let (mut port, _queues) = open(&device, 2, &DEFAULT_KEY).expect("a port");
        let error = port.install(&rules).expect_err("no rules");
        assert!(matches!(error, FlowError::Unsupported { .. }), "{error}");
        assert!(error.to_string().contains("cannot steer by rules"), "{error}");
        let partial = FlowRule {
            port: Some(MaskedPort { value: 0, mask: 0x8000 }),
            ..rules[0]
        };
        let error = port.install(&[partial]).expect_err("not known");
        assert!(error.to_string().contains("not known to keep a port mask"), "{error}");
        port.remove_rules();
    }
}

#[test]
fn a_number_of_queues_in_the_device_must_be_that_of_the_cores() {
    for (device, queues) in [
        ("net_af_packet0,iface=lo,qpairs=2", 1),
        ("net_af_packet0,iface=lo,qpairs=1", 2),
        ("net_af_xdp0,iface=lo,queue_count=3", 2),
    ] {
        match open(device, queues, &DEFAULT_KEY).map(|_| ()).expect_err("refused") {
            PortError::QueueArgument {
                argument,
                queues: needed,
                ..
            } => assert!(device.ends_with(&argument) && needed == queues, "{argument}"),
            // The device itself is looked at first, and may not be for this user.
            PortError::Device(error) => assert!(error.to_string().contains("cap_net"), "{error}"),
            error => panic!("{error}"),
        }
    }
}

/// No card is needed to see whether testpmd understands a command: it complains about the arguments, or passes the rule on to
/// the driver of net_null, which has no such function.
#[test]
fn testpmd_understands_the_commands_for_rules() {
    let masks = [None, Some((0x4000, 0xc000)), Some((443, u16::MAX))];
    let mut commands = String::new();
    for model in [None, Some(NicModel::Intel82599), Some(NicModel::X710)] {
        for destination in [
            IpAddr::from([192, 0, 2, 10]),
            IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, 9]),
        ] {
            for port in masks {
                let rule = FlowRule {
                    destination,
                    port: port.map(|(value, mask)| MaskedPort { value, mask }),
                    queue: 1,
                };
                commands += &rule.testpmd(0, model);
                commands += "\n";
            }
        }
    }
    let count = commands.lines().count();
    commands += "flow create what is this\nquit\n";
    let program = Command::new("dpdk-testpmd")
        .args([
            "--no-pci",
            "--no-huge",
            "-m",
            "64",
            "--no-shconf",
            "--no-telemetry",
            "--vdev",
            "net_null0",
        ])
        .args(["--", "-i", "--rxq=2", "--txq=2", "--total-num-mbufs=2048"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let Ok(mut program) = program else {
        return skip("dpdk-testpmd (Debian: dpdk-dev) is not installed");
    };
    let mut input = program.stdin.take().expect("a pipe");
    input.write_all(commands.as_bytes()).expect("it reads");
    drop(input);
    let output = program.wait_with_output().expect("it ends");
    let printed = [output.stdout, output.stderr].concat();
    let printed = String::from_utf8_lossy(&printed);
    if !printed.contains("testpmd> ") {
        return skip("dpdk-testpmd does not start here");
    }
    assert_eq!(
        printed.matches("Function not implemented: ").count(),
        count,
        "{printed}"
    );
    assert_eq!(printed.matches("Bad arguments").count(), 1, "{printed}");
}
