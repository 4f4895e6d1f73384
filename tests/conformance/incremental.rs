//! Incremental transfers (RFC 1995) over TCP and UDP. That every difference leads to the whole zone
//! is tested in `dns-server/tests/model/transfers.rs`; that secondaries follow it, in
//! `secondaries`.

use anyhow::{Context as _, Result, ensure};
use hickory_proto::rr::{RData, Record};
use multinet_testing::dns::{Query, Reply, Transport};
use multinet_testing::server::{Flags, Manifests, Server, eventually};

use crate::fixtures::{Service, ZONE};
use crate::transfer::ixfr;

/// Server with a zone so large that differences are smaller, and with one small service.
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

    /// Changes the addresses of the small service. Returns the zone's new serial.
    fn change(&self, addresses: &[u8]) -> Result<u32> {
        let before = self.serial()?;
        let hosts = addresses.iter().map(|&n| ([10, 0, 0, n].into(), format!("h{n}")));
        self.manifests.replace("one.yaml", &Service::new("one").hosts(hosts).yaml())?;
        eventually("the serial to rise", || {
            let now = self.serial()?;
            ensure!(now != before, "it is still {now}");
            Ok(now)
        })
    }

    /// Requests the difference since serial `known`. Returns the records of the reply, which has to
    /// be one message.
    fn ask(&self, transport: Transport, known: u32) -> Result<Vec<String>> {
        let packet = ixfr(&Query::new(ZONE, "IXFR"), known);
        let reply = Reply::to(&packet, transport.exchange(self.server.dns(), &packet)?)?;
        ensure!(reply.header().starts_with("QUERY NOERROR aa") && reply.has_question(), "{}", reply.header());
        Ok(answers(&reply))
    }
}

/// Returns the answers of a reply: the serial of each SOA record, and owner and type of all others,
/// with owners relative to the zone.
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

/// Over UDP, a difference that does not fit is replaced by the SOA record alone, so that the client
/// uses TCP (RFC 1995 §2).
#[test]
fn differences_are_sent_over_tcp_and_over_udp_if_they_fit() -> Result<()> {
    let changing = Changing::start()?;
    let first = changing.serial()?;
    // A change of hosts does not fit into 512 bytes.
    let second = changing.change(&[1, 2, 3])?;
    for known in [first, second, 1] {
        assert_eq!(changing.ask(Transport::Udp, known)?, [second.to_string()]);
    }
    let records = changing.ask(Transport::Tcp, first)?;
    let serials: Vec<u32> = records.iter().filter_map(|record| record.parse().ok()).collect();
    assert_eq!(serials, [second, first, second, second]);
    ensure!(records.contains(&"h3.one.test.svc. A".to_owned()), "{records:?}");
    // A change of only the serial fits. Until the journal has the change, the server gives the
    // earlier answer.
    let packet = ixfr(&Query::new("ip6.arpa", "IXFR"), first);
    eventually("the difference over UDP", || {
        let reply = Reply::to(&packet, Transport::Udp.exchange(changing.server.dns(), &packet)?)?;
        let expected = [second, first, second, second].map(|serial| serial.to_string());
        ensure!(answers(&reply) == expected, "{:?}", reply.answers());
        Ok(())
    })?;
    // For a serial between two versions, which was never served, the server sends the whole zone.
    let whole = changing.ask(Transport::Tcp, second.wrapping_sub(1))?;
    ensure!(whole.len() > 500 && whole[1].parse::<u32>().is_err(), "{} records", whole.len());
    assert_eq!(changing.ask(Transport::Tcp, second)?, [second.to_string()]);
    // Requests of clients that are up to date are counted for both transports.
    for (kind, count) in [("axfr", 1.0), ("current", 2.0)] {
        let metric = format!("multinet_dns_transfers_total{{kind=\"{kind}\"}}");
        assert_eq!(changing.server.metric(&metric)?, count, "{kind}");
    }
    ensure!(changing.server.metric("multinet_dns_journal_bytes")? > 0.0, "the journal is empty");
    Ok(())
}
