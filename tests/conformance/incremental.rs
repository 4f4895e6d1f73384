//! Incremental transfers (RFC 1995): what has changed since a version that was served. That every
//! difference leads to the whole zone is in `dns-server/tests/model/transfers.rs`, that secondaries
//! follow it in `secondaries`.

use anyhow::{Context as _, Result, ensure};
use hickory_proto::rr::{RData, Record};
use multinet_testing::dns::{Query, Reply, Transport};
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

/// A reply's answers: of an SOA its serial, of another record its owner below the zone and its
/// type.
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

/// Over UDP there is the difference if it fits, else the one SOA, which says: ask by TCP (RFC 1995
/// §2).
#[test]
fn a_difference_comes_by_tcp_and_by_udp_if_it_fits() -> Result<()> {
    let changing = Changing::start()?;
    let first = changing.serial()?;
    // In 512 octets there is no room for a change of hosts.
    let second = changing.change(&[1, 2, 3])?;
    for known in [first, second, 1] {
        assert_eq!(changing.ask(Transport::Udp, known)?, [second.to_string()]);
    }
    let records = changing.ask(Transport::Tcp, first)?;
    let serials: Vec<u32> = records.iter().filter_map(|record| record.parse().ok()).collect();
    assert_eq!(serials, [second, first, second, second]);
    ensure!(records.contains(&"h3.one.test.svc. A".to_owned()), "{records:?}");
    // A change of nothing but the zone's serial is small enough. Until the change is in the
    // journal, the server answers as before it.
    let packet = ixfr(&Query::new("ip6.arpa", "IXFR"), first);
    eventually("the difference", || {
        let reply = Reply::to(&packet, Transport::Udp.exchange(changing.server.dns(), &packet)?)?;
        let expected = [second, first, second, second].map(|serial| serial.to_string());
        ensure!(answers(&reply) == expected, "{:?}", reply.answers());
        Ok(())
    })?;
    // A serial between two versions was never served: the whole zone, which begins with other
    // records.
    let whole = changing.ask(Transport::Tcp, second.wrapping_sub(1))?;
    ensure!(whole.len() > 500 && whole[1].parse::<u32>().is_err(), "{} records", whole.len());
    assert_eq!(changing.ask(Transport::Tcp, second)?, [second.to_string()]);
    // Who is up to date is counted by either transport.
    for (kind, count) in [("axfr", 1.0), ("current", 2.0)] {
        let metric = format!("multinet_dns_transfers_total{{kind=\"{kind}\"}}");
        assert_eq!(changing.server.metric(&metric)?, count, "{kind}");
    }
    ensure!(changing.server.metric("multinet_dns_journal_bytes")? > 0.0, "no journal");
    Ok(())
}
