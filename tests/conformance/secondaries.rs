//! Real secondaries that follow every change: they are notified (NOTIFY), fetch the difference
//! (IXFR), and then have the same records.
//!
//! Knot signs its requests and gets signed notifications (TSIG); NSD is identified by its address.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use multinet_testing::dns::{Query, Transport};
use multinet_testing::process::free_port;
use multinet_testing::secondary::{Kind, Secondary, TsigKey, Zone};
use multinet_testing::server::{Flags, Manifests, Server, eventually};

use crate::fixtures::{Service, ZONE, folder};

const ZONES: [&str; 3] = [ZONE, "in-addr.arpa", "ip6.arpa"];

const KEY: TsigKey = TsigKey { name: "knot.test", secret: "c2VjcmV0IG9mIGF0IGxlYXN0IHNpeHRlZW4gb2N0ZXRz" };

/// Time limit for secondaries to have the same records. A secondary that was down is notified again
/// within 15 seconds.
const PATIENCE: Duration = Duration::from_secs(40);

/// Services that change.
const SERVICES: usize = 40;

/// Hosts of the large service.
const HOSTS: u16 = 400;

#[test]
fn secondaries_are_identical_through_60_changes() -> Result<()> {
    Pair::start()?.follow(60)
}

#[test]
#[ignore = "takes minutes: make soak"]
fn soak_secondaries_are_identical_through_10_000_changes() -> Result<()> {
    Pair::start()?.follow(10_000)
}

/// The outer zone has the NS and address records of the inner zone's name server (RFC 1034 §4.2.1).
#[test]
fn a_secondary_of_the_outer_zone_refers_to_the_inner_one() -> Result<()> {
    let keys = tempfile::tempdir()?;
    fs::write(keys.path().join("keys"), KEY.statement())?;
    let server = Flags::new()
        .words(&format!("--zone {ZONE} --zone b.a.{ZONE} --ns-address 192.0.2.53 --ns-address 2001:db8::53"))
        .flag("--tsig-key-file", keys.path().join("keys"))
        .words(&format!("--transfer-to key:{} --transfer-to 127.0.0.2", KEY.name))
        .start(&folder())?;
    for kind in [Kind::Knot(KEY), Kind::Nsd] {
        let mut secondary = Secondary::new(kind, server.dns().port(), &[ZONE])?;
        secondary.start()?;
        let expected = Zone::fetch(server.dns().port(), ZONE, Some(KEY))?;
        await_zone(&mut secondary, ZONE, &expected)?;
        let query = Query::new(&format!("only.plain.ml.svc.b.a.{ZONE}"), "A").flags(0);
        let reply = Transport::Udp.ask((Ipv4Addr::LOCALHOST, secondary.port()).into(), &query)?;
        assert_eq!(
            reply.text(ZONE),
            "QUERY NOERROR\nAUTHORITY\nb.a 5 IN NS ns.dns.b.a\nADDITIONAL\nns.dns.b.a 5 IN A 192.0.2.53\n\
             ns.dns.b.a 5 IN AAAA 2001:db8::53",
            "{kind:?}"
        );
    }
    Ok(())
}

/// Server with its manifests and two secondaries.
struct Pair {
    manifests: Manifests,
    server: Server,
    knot: Secondary,
    nsd: Secondary,
    random: fastrand::Rng,
    serial: u32,
    /// Number of whole zones that the test itself has fetched for comparison.
    fetched: f64,
}

impl Pair {
    fn start() -> Result<Self> {
        let manifests = Manifests::new()?;
        let keys = tempfile::tempdir()?;
        fs::write(keys.path().join("keys"), KEY.statement())?;
        manifests.write("large.yaml", &large(&["a"; 4]))?;
        let port = free_port()?;
        let mut knot = Secondary::new(Kind::Knot(KEY), port, &ZONES)?;
        let mut nsd = Secondary::new(Kind::Nsd, port, &ZONES)?;
        knot.start()?;
        nsd.start()?;
        let server = Flags::new()
            .listen_instead(&format!("dns://127.0.0.1:{port}"))
            .flag("--tsig-key-file", keys.path().join("keys"))
            .words(&format!("--transfer-to key:{} --transfer-to 127.0.0.2", KEY.name))
            .words(&format!("--notify 127.0.0.1:{}@{}", knot.port(), KEY.name))
            .words(&format!("--notify 127.0.0.1:{}", nsd.port()))
            .start(manifests.path())?;
        let serial = server.query(ZONE, "SOA")?.serial().context("no SOA")?;
        Ok(Self { manifests, server, knot, nsd, random: fastrand::Rng::with_seed(7), serial, fetched: 0.0 })
    }

    fn follow(mut self, changes: usize) -> Result<()> {
        self.check(true, true)?;
        let begun = Instant::now();
        let before = self.transfers()?;
        self.change(changes / 2)?;
        // A secondary that was stopped for a while gets the differences that it has missed.
        self.knot.stop()?;
        self.change(5)?;
        self.check(false, true)?;
        let [axfr, ixfr] = self.transfers()?;
        // On a busy machine, a secondary may fall so far behind that it gets a whole zone.
        let (whole, incremental) = (axfr - before[0], ixfr - before[1]);
        ensure!(incremental > 10.0 * whole, "{whole} whole zones, but only {incremental} differences");
        self.knot.start()?;
        self.check(true, true)?;
        ensure!(self.transfers()?[0] == axfr, "a whole zone although only five changes were missed");
        self.change_one_zone()?;
        // A secondary that misses more changes than the journal holds gets a whole zone.
        self.knot.stop()?;
        for hosts in [["b", "a", "a", "a"], ["b", "b", "a", "a"], ["b", "b", "b", "a"], ["b"; 4]] {
            self.publish("large.yaml", &large(&hosts))?;
            self.check(false, true)?;
        }
        let [before, _] = self.transfers()?;
        self.knot.start()?;
        self.check(true, true)?;
        ensure!(self.transfers()?[0] > before, "differences older than the journal");
        self.change(changes - changes / 2)?;
        self.check(true, true)?;
        let [whole, incremental] = self.transfers()?;
        let notifies = self.server.metric("multinet_dns_notifies_acknowledged_total")?;
        eprintln!(
            "{changes} changes in {:?}: {incremental} incremental transfers, {whole} of whole zones, {notifies} \
             notifications; serial {}",
            begun.elapsed(),
            self.serial
        );
        ensure!(self.knot.log().contains("IXFR, incoming"), "Knot got no IXFR:\n{}", self.knot.log());
        let refused = self.server.metric("multinet_dns_transfers_total{kind=\"refused\"}")?;
        ensure!(refused == 0.0, "{refused} transfers were refused");
        Ok(())
    }

    /// Changes only the forward zone. The serials of the reverse zones change, too, and a secondary
    /// that checks gets a difference with only the new serial.
    fn change_one_zone(&mut self) -> Result<()> {
        let before = self.transfers()?;
        for port in ["port: 81", "port: 82"] {
            let yaml = Service::new("port").endpoint([10, 9, 9, 9]).yaml().replace("port: 80", port);
            self.publish("port.yaml", &yaml)?;
            self.check(true, true)?;
        }
        for secondary in [&mut self.knot, &mut self.nsd] {
            secondary.refresh("in-addr.arpa")?;
            eventually("the serial of a zone that has not changed", || {
                let serial = secondary.zone("in-addr.arpa")?.serial;
                ensure!(serial == self.serial.to_string(), "{serial} instead of {}", self.serial);
                Ok(())
            })?;
        }
        self.check(true, true)?;
        ensure!(self.transfers()?[0] == before[0], "a whole zone although only its serial changed");
        Ok(())
    }

    /// Returns the numbers of whole zones and of differences that the secondaries have fetched.
    fn transfers(&self) -> Result<[f64; 2]> {
        let of = |kind| self.server.metric(&format!("multinet_dns_transfers_total{{kind=\"{kind}\"}}"));
        Ok([of("axfr")? - self.fetched, of("ixfr")?])
    }

    /// Changes services at random, and compares the zones after every few changes.
    fn change(&mut self, changes: usize) -> Result<()> {
        for number in 1..=changes {
            let service = format!("changing-{}", self.random.usize(..SERVICES));
            let file = format!("{service}.yaml");
            let exists = self.manifests.file(&file).exists();
            if exists && self.random.u8(..8) == 0 {
                self.manifests.remove(&file)?;
                self.await_serial()?;
            } else {
                // Some hosts have their own addresses, and some share them with other services.
                let hosts: Vec<(IpAddr, String)> = (0..self.random.u16(1..6))
                    .map(|_| {
                        let n = self.random.u16(1..50);
                        let v4 = IpAddr::from(Ipv4Addr::from(0x0a01_0000 | u32::from(n)));
                        let v6 = IpAddr::from(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 1, n));
                        (
                            if self.random.bool() { v4 } else { v6 },
                            format!("h{}-{number}", self.random.u8(..4)),
                        )
                    })
                    .collect();
                self.publish(&file, &Service::new(&service).hosts(hosts).yaml())?;
            }
            if number % 1000 == 0 {
                self.check(true, true)?;
            }
        }
        Ok(())
    }

    /// Writes a manifest and waits until it is served.
    fn publish(&mut self, file: &str, yaml: &str) -> Result<()> {
        self.manifests.replace(file, yaml)?;
        self.await_serial()
    }

    fn await_serial(&mut self) -> Result<()> {
        let before = self.serial;
        let deadline = Instant::now() + PATIENCE;
        while self.serial == before {
            ensure!(Instant::now() < deadline, "the serial does not rise after a change");
            std::thread::sleep(Duration::from_millis(1));
            self.serial = self.server.ask(&Query::new(ZONE, "SOA"))?.serial().context("no SOA")?;
        }
        Ok(())
    }

    /// Waits until the secondaries have the same zones as the server.
    fn check(&mut self, knot: bool, nsd: bool) -> Result<()> {
        for apex in ZONES {
            let expected = Zone::fetch(self.server.dns().port(), apex, Some(KEY))?;
            self.fetched += 1.0;
            for (secondary, is_checked) in [(&mut self.knot, knot), (&mut self.nsd, nsd)] {
                if is_checked {
                    await_zone(secondary, apex, &expected)?;
                }
            }
        }
        Ok(())
    }
}

/// Waits until a secondary has these contents of a zone.
fn await_zone(secondary: &mut Secondary, apex: &str, expected: &Zone) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let problem = match secondary.zone(apex) {
            // A secondary is not notified if only the serial of a zone has changed.
            Ok(zone) if zone.records == expected.records => {
                ensure!(apex != ZONE || zone.serial == expected.serial, "{apex}: another serial");
                return Ok(());
            }
            Ok(zone) => format!(
                "serial {} instead of {}, unexpected: {:?}, missing: {:?}",
                zone.serial,
                expected.serial,
                zone.records.difference(&expected.records).take(5).collect::<Vec<_>>(),
                expected.records.difference(&zone.records).take(5).collect::<Vec<_>>()
            ),
            Err(error) => format!("{error:#}"),
        };
        ensure!(Instant::now() < deadline, "{apex} differs: {problem}\n{}", secondary.log());
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Returns a service that makes the zones so large that differences are smaller. A quarter of its
/// hosts begin with each of these words.
fn large(words: &[&str; 4]) -> String {
    let hosts = (0..HOSTS).map(|n| {
        let address = Ipv4Addr::from(0x0a00_0000 | u32::from(n));
        (IpAddr::from(address), format!("{}-{n}", words[usize::from(n) % 4]))
    });
    let more = (0..HOSTS).map(|n| {
        let address = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, n);
        (IpAddr::from(address), format!("{}-{n}", words[usize::from(n) % 4]))
    });
    Service::new("large").hosts(hosts.chain(more)).yaml()
}
