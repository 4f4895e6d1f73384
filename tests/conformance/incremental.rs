//! Incremental transfers (RFC 1995): what has changed since a version that was served.

use anyhow::{Context as _, Result, ensure};
use hickory_proto::rr::{RData, Record};
use multinet_testing::dns::{PATIENCE, Query, Reply, Tcp, Transport};
use multinet_testing::server::{Flags, Manifests, Server, eventually};

use crate::fixtures::{Service, ZONE};
use crate::transfer::ixfr;

/// A server with a zone large enough that differences are worth while, and one small service.
struct Changing {
    manifests: Manifests,
    server: Server,
}

impl Changing {
    fn start() -> Result<Self> {
        let manifests = Manifests::new()?;
        let hosts = (1..=200u8).map(|n| ([10, 0, 1, n].into(), format!("host-{n}")));
        manifests.write("large.yaml", &Service::new("large").hosts(hosts).yaml())?;
        manifests.write("one.yaml", &Service::new("one").endpoint([10, 0, 0, 1]).yaml())?;
        let server = Flags::new().words("--transfer-to 127.0.0.0/8").start(manifests.path())?;
        Ok(Self { manifests, server })
    }

    fn serial(&self) -> Result<u32> {
        self.server.query(ZONE, "SOA")?.serial().context("no SOA")
    }

    /// Gives the small service these addresses, and returns the serial from which on it has them.
    fn change(&self, addresses: &[u8]) -> Result<u32> {
        let before = self.serial()?;
        let hosts = addresses.iter().map(|&n| ([10, 0, 0, n].into(), format!("h{n}")));
        self.manifests.replace("one.yaml", &Service::new("one").hosts(hosts).yaml())?;
        eventually("the serial to rise", || {
            let now = self.serial()?;
            ensure!(now != before, "it still is {now}");
            Ok(now)
        })
    }

    /// Asks for what has changed, over TCP or UDP, and returns the records of the one message.
    fn ask(&self, transport: Transport, known: u32) -> Result<Vec<String>> {
        let packet = ixfr(&Query::new(ZONE, "IXFR"), known);
        let reply = Reply::to(&packet, transport.exchange(self.server.dns(), &packet)?)?;
        ensure!(reply.header().starts_with("QUERY NOERROR aa") && reply.has_question(), "{}", reply.header());
        Ok(answers(&reply))
    }
}

/// A reply's answers: of an SOA its serial, of another record its owner below the zone and its type.
fn answers(reply: &Reply) -> Vec<String> {
    let short = |record: &Record| match &record.data {
        RData::SOA(soa) => soa.serial.to_string(),
        _ => {
            let owner = record.name.to_ascii();
            format!("{} {}", owner.strip_suffix(&format!("{ZONE}.")).unwrap_or(&owner), record.record_type())
        }
    };
    reply.message.answers.iter().map(short).collect()
}

/// The serials of the SOAs, and how many records follow each.
fn steps(records: &[String]) -> Vec<(u32, usize)> {
    let mut steps: Vec<(u32, usize)> = Vec::new();
    for record in records {
        match (record.parse(), steps.last_mut()) {
            (Ok(serial), _) => steps.push((serial, 0)),
            (Err(_), Some((_, count))) => *count += 1,
            (Err(_), None) => {}
        }
    }
    steps
}

#[test]
fn every_version_is_a_step() -> Result<()> {
    let changing = Changing::start()?;
    let first = changing.serial()?;
    let second = changing.change(&[1, 2])?;
    let third = changing.change(&[2])?;
    // Of two hosts instead of one there are at S: A, SRV; at the port: SRV; at the host: A, TXT; all that
    // once more for the network. The weights of the SRV records change.
    let records = changing.ask(Transport::Tcp, second)?;
    let found: Vec<(u32, usize)> = steps(&records);
    ensure!(found.len() == 4, "{records:?}");
    let [(newest, 0), (from, removed), (to, added), (last, 0)] = found[..] else {
        anyhow::bail!("{records:?}");
    };
    assert_eq!((newest, from, to, last), (third, second, third, third));
    ensure!(removed > added && added > 0, "{records:?}");
    let removed = &records[2..2 + removed];
    ensure!(removed.contains(&"h1.one.test.svc. A".to_owned()), "{removed:?}");
    ensure!(!removed.contains(&"h2.one.test.svc. A".to_owned()), "{removed:?}");
    let serials: Vec<u32> =
        steps(&changing.ask(Transport::Tcp, first)?).into_iter().map(|(serial, _)| serial).collect();
    assert_eq!(serials, [third, first, second, second, third, third]);
    assert_eq!(changing.ask(Transport::Tcp, third)?, [third.to_string()]);
    // A serial between two versions was never served: the whole zone, which begins with other records.
    let whole = changing.ask(Transport::Tcp, third.wrapping_sub(1))?;
    ensure!(whole.len() > 500 && whole[1].parse::<u32>().is_err(), "{} records", whole.len());
    assert_eq!(changing.server.metric("multinet_dns_transfers_total{kind=\"ixfr\"}")?, 2.0);
    assert_eq!(changing.server.metric("multinet_dns_transfers_total{kind=\"axfr\"}")?, 1.0);
    assert_eq!(changing.server.metric("multinet_dns_transfers_total{kind=\"current\"}")?, 1.0);
    ensure!(changing.server.metric("multinet_dns_journal_bytes")? > 0.0, "no journal");
    Ok(())
}

/// Over UDP there is the difference if it fits, else the one SOA, which says: ask by TCP (RFC 1995 §2).
#[test]
fn what_fits_a_datagram_comes_in_one() -> Result<()> {
    let changing = Changing::start()?;
    let first = changing.serial()?;
    // In 512 octets there is no room for a change of hosts.
    let second = changing.change(&[1, 2, 3])?;
    assert_eq!(changing.ask(Transport::Udp, first)?, [second.to_string()]);
    assert_eq!(changing.ask(Transport::Udp, second)?, [second.to_string()]);
    assert_eq!(changing.ask(Transport::Udp, 1)?, [second.to_string()]);
    // What changes no record of the zone but its serial is small enough. While a change is being written down, it is as if it were not.
    let packet = ixfr(&Query::new("ip6.arpa", "IXFR"), first);
    eventually("the difference", || {
        let reply = Reply::to(&packet, Transport::Udp.exchange(changing.server.dns(), &packet)?)?;
        let serials: Vec<(u32, usize)> = steps(&answers(&reply));
        ensure!(serials == [(second, 0), (first, 0), (second, 0), (second, 0)], "{serials:?}");
        Ok(())
    })
}

/// Who reads slowly has one version from beginning to end, and nobody waits for that.
#[test]
fn a_slow_secondary_gets_one_version() -> Result<()> {
    let changing = Changing::start()?;
    let hosts =
        (0..3000u16).map(|n| (std::net::Ipv4Addr::from(0x0a02_0000 | u32::from(n)).into(), format!("h-{n}")));
    let before = changing.serial()?;
    changing.manifests.replace("huge.yaml", &Service::new("huge").hosts(hosts).yaml())?;
    // The serial rises when all of it is there.
    let serial = eventually("the huge service", || {
        let serial = changing.serial()?;
        ensure!(serial != before, "not yet");
        Ok(serial)
    })?;
    let query = Query::new(ZONE, "AXFR");
    let mut stream = Tcp::connect(changing.server.dns())?;
    stream.send(&query.to_wire())?;
    let mut last = serial;
    for n in 1..=10 {
        last = changing.change(&[n, n + 1])?;
    }
    ensure!(last != serial, "nothing has changed");
    let mut soas = Vec::new();
    let begun = std::time::Instant::now();
    while soas.len() < 2 {
        ensure!(begun.elapsed() < PATIENCE, "the transfer does not end");
        let reply = Reply::parse(stream.receive()?)?;
        soas.extend(answers(&reply).iter().filter_map(|record| record.parse::<u32>().ok()));
    }
    assert_eq!(soas, [serial, serial]);
    Ok(())
}
