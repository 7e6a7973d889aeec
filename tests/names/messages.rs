//! Answers byte by byte: what is read of them, and that nothing makes the reader stumble.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;

use domain::base::iana::Rcode;
use domain::base::{Message, MessageBuilder, Ttl};
use domain::rdata::{A, Soa};
use proptest::prelude::*;
use proxyengine::names::message::{self, Data, Kind, Reply};

use crate::world::*;

#[test]
fn aliases_are_followed_within_the_answer_and_no_foreign_name_is_taken() {
    let mut zone = web(60, &[]);
    zone.push((WEB, 7, Says::Alias("a.example.org")));
    zone.push(("a.example.org", 60, Says::Alias("b.example.org")));
    zone.push(("b.example.org", 60, Says::Address(ip("10.0.0.5"))));
    let mut world = World::new(vec![Does::Answers(zone)], &[host(WEB)]);
    world.run(SECOND);
    assert_eq!(world.addresses(&host(WEB)), [ip("10.0.0.5")]);
    world.servers = vec![Does::Answers(web(60, &["10.0.0.6"]))];
    world.run(7 * SECOND);
    assert_eq!(
        world.addresses(&host(WEB)),
        [ip("10.0.0.6")],
        "the shortest time on the way holds"
    );

    let circle: Zone = vec![
        (WEB, 60, Says::Alias("a.example.org")),
        ("a.example.org", 60, Says::Alias(WEB)),
    ];
    let mut world = World::new(vec![Does::Answers(circle)], &[host(WEB)]);
    world.run(60 * SECOND);
    assert!(world.addresses(&host(WEB)).is_empty() && world.failures() > 0);

    // Another owner with the right kind, as a poisoner adds it.
    let asked = message::question(7, WEB, Kind::A).expect("a name");
    let asked = Message::from_octets(&asked[..]).expect("a message");
    let mut builder = MessageBuilder::new_vec()
        .start_answer(&asked, Rcode::NOERROR)
        .expect("room");
    for (owner, last) in [("bank.example.org", 6), (WEB, 1)] {
        let data = A::new(Ipv4Addr::new(10, 0, 0, last));
        builder.push((name(owner), Ttl::from_secs(9), data)).expect("room");
    }
    let told = message::answer(&builder.finish(), 7, WEB, Kind::A).expect("an answer");
    assert_eq!(
        told,
        Reply::Told(Data::Addresses([ip("10.0.0.1")].into()), Some(9 * SECOND))
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Any bytes, and any change of a right answer: refused, failed or read, and never more than there can be.
    #[test]
    fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..300), at in 0..400_usize, to: u8) {
        for kind in [Kind::A, Kind::Aaaa, Kind::Srv] {
            _ = message::answer(&bytes, 7, LDAP, kind);
            let asked = message::question(7, LDAP, kind).expect("a name");
            let zone = ldap(&[(0, 1, 2, "a.example.net"), (1, 2, 3, "b.example.net")], &[(LDAP, "10.0.0.1"), (LDAP, "2001:db8::1")]);
            let mut changed = answer(&asked, &zone, Rcode::NOERROR);
            let place = at % changed.len();
            changed[place] = to;
            if let Ok(Reply::Told(Data::Addresses(addresses), _)) = message::answer(&changed, 7, LDAP, kind) {
                prop_assert!(addresses.len() <= 2);
            }
        }
    }
}

/// Pointers of compressed names that lead to themselves, to each other, forward, and out of the message (RFC 1035 4.1.4).
#[test]
fn pointers_that_lead_nowhere_end_the_reading() {
    let asked = message::question(7, WEB, Kind::A).expect("a name");
    let right = answer(&asked, &web(9, &["10.0.0.1"]), Rcode::NOERROR);
    let owner = 12 + WEB.len() + 2 + 4;
    for pointer in [owner, owner + 1, owner + 2, 0x3fff, right.len() - 1, 0] {
        let mut wrong = right.clone();
        wrong.splice(owner..owner + 2, [0xc0 | (pointer >> 8) as u8, pointer as u8]);
        let told = message::answer(&wrong, 7, WEB, Kind::A);
        let nothing = |data: &Data| data.is_empty();
        assert!(
            matches!(&told, Ok(Reply::Failed)) || matches!(&told, Ok(Reply::Told(data, _)) if nothing(data)),
            "{pointer}: {told:?}"
        );
    }
    let soa = Soa::new(
        name("ns.example.net"),
        name("me.example.net"),
        1.into(),
        Ttl::HOUR,
        Ttl::HOUR,
        Ttl::HOUR,
        Ttl::from_secs(17),
    );
    let asked = Message::from_octets(&asked[..]).expect("a message");
    let builder = MessageBuilder::new_vec()
        .start_answer(&asked, Rcode::NXDOMAIN)
        .expect("room");
    let mut authority = builder.authority();
    authority
        .push((name("example.net"), Ttl::from_secs(60), soa))
        .expect("room");
    let told = message::answer(&authority.finish(), 7, WEB, Kind::A);
    assert_eq!(
        told,
        Ok(Reply::Told(Data::Addresses(BTreeSet::new()), Some(17 * SECOND)))
    );
}
