//! Flags and variables for zones and for the addresses of the name server.

use anyhow::{Result, ensure};
use multinet_testing::dns::Query;
use multinet_testing::server::Flags;

use crate::fixtures::{ZONE, folder};

/// This is the default without `--ns-address`.
#[test]
fn the_name_server_has_the_listening_addresses() -> Result<()> {
    let server = Flags::new().start(&folder())?;
    let reply = server.query(ZONE, "NS")?;
    assert_eq!(
        reply.text(ZONE),
        "QUERY NOERROR aa rd\nANSWER\n@ 5 IN NS ns.dns\nADDITIONAL\nns.dns 5 IN A 127.0.0.1"
    );
    Ok(())
}

#[test]
fn a_wildcard_is_no_address_of_the_name_server() -> Result<()> {
    let server = Flags::new().listen_instead("dns://0.0.0.0:0").start(&folder())?;
    assert_eq!(server.query(ZONE, "NS")?.text(ZONE), "QUERY NOERROR aa rd\nANSWER\n@ 5 IN NS ns.dns");
    let reply = server.query(&format!("ns.dns.{ZONE}"), "A")?;
    // The name of the name server exists even without an address.
    ensure!(reply.rcode() == "NOERROR" && reply.answers().is_empty(), "{}", reply.text(ZONE));

    let server = Flags::new().listen_instead("dns://0.0.0.0:0").words("--ns-address ::1").start(&folder())?;
    assert_eq!(server.query(&format!("ns.dns.{ZONE}"), "AAAA")?.data(), ["::1"]);
    Ok(())
}

#[test]
fn a_listener_for_ipv6_is_served() -> Result<()> {
    let server = Flags::new().listen_instead("[::1]:0").start(&folder())?;
    ensure!(server.dns().is_ipv6(), "it listens on {}", server.dns());
    assert_eq!(server.query(&format!("ns.dns.{ZONE}"), "AAAA")?.data(), ["::1"]);
    assert_eq!(server.ask_tcp(&Query::new(ZONE, "SOA"))?.rcode(), "NOERROR");
    Ok(())
}

/// Variables have the values of flags, with commas between the items of a list.
#[test]
fn zones_are_read_from_the_environment() -> Result<()> {
    let flags = Flags::new()
        .env("MULTINET_ZONE", "a.test,b.test")
        .env("MULTINET_REVERSE_ZONE", "10.in-addr.arpa")
        .env("MULTINET_TTL", "77")
        .env("MULTINET_NS_ADDRESS", "192.0.2.1,2001:db8::1");
    let server = flags.start(&folder())?;
    for zone in ["a.test", "b.test"] {
        let reply = server.query(&format!("ns.dns.{zone}"), "A")?;
        assert_eq!(reply.answers(), [format!("ns.dns.{zone}. 77 IN A 192.0.2.1")]);
        assert_eq!(server.query(&format!("ns.dns.{zone}"), "AAAA")?.data(), ["2001:db8::1"]);
    }
    assert_eq!(server.query(ZONE, "SOA")?.header(), "QUERY REFUSED rd");
    assert_eq!(server.query("10.in-addr.arpa", "SOA")?.rcode(), "NOERROR");
    assert_eq!(server.query("ip6.arpa", "SOA")?.rcode(), "REFUSED");

    // A flag overrides its variable.
    let server = Flags::new().env("MULTINET_TTL", "77").words("--ttl 78").start(&folder())?;
    ensure!(server.query(ZONE, "SOA")?.answers()[0].contains(" 78 IN SOA "), "the variable was used");
    Ok(())
}

/// Negative answers have it, too.
#[test]
fn a_time_to_live_of_zero_is_used_in_all_answers() -> Result<()> {
    let server = Flags::new().words("--ttl 0").start(&folder())?;
    assert_eq!(
        server.query(&format!("nothing.{ZONE}"), "A")?.text(ZONE),
        "QUERY NXDOMAIN aa rd\nAUTHORITY\n@ 0 IN SOA ns.dns hostmaster SERIAL 7200 1800 86400 0"
    );
    assert_eq!(
        server.query(&format!("hdlsprtls.testns.svc.{ZONE}"), "A")?.answers(),
        [format!("hdlsprtls.testns.svc.{ZONE}. 0 IN A 172.0.0.20")]
    );
    Ok(())
}
