use super::*;
use crate::store::reverse::ReverseRanges;

fn config(flags: &[&str]) -> Result<Config, String> {
    let args =
        Args::try_parse_from(["multinet-dns"].iter().chain(flags)).map_err(|error| error.to_string())?;
    Config::new(args).map_err(|error| error.to_string())
}

fn listen(flags: &[&str]) -> Vec<String> {
    config(flags).unwrap().listen.iter().map(ToString::to_string).collect()
}

#[test]
fn the_default_listener_depends_on_the_source() {
    assert_eq!(listen(&["--manifests", "x"]), ["dns://127.0.0.1:5353"]);
    assert_eq!(listen(&[]), ["dns://[::]:53"]);
    assert_eq!(
        listen(&["--listen", "127.0.0.1:1", "--listen", "[::1]:1"]),
        ["dns://127.0.0.1:1", "dns://[::1]:1"]
    );
}

#[test]
fn defaults_are_those_of_the_documentation() {
    let config = config(&[]).unwrap();
    assert_eq!(config.source, Source::Kubernetes);
    let args = config.args;
    assert_eq!(args.zone, ["multinet.cluster.local".parse().unwrap()]);
    assert_eq!(args.reverse_zone, ["in-addr.arpa", "ip6.arpa"].map(|zone| zone.parse().unwrap()));
    assert!(args.vertex_zone.is_empty());
    let ranges = ReverseRanges::new(args.reverse_range, args.reverse_exclude);
    assert_eq!(ranges, ReverseRanges::default());
    assert_eq!((args.ttl, args.answer_order, args.log_queries), (5, AnswerOrder::Rotate, false));
    assert_eq!((args.lameduck, args.program.admin), (Duration::from_secs(5), None));
    assert!(args.transfer_to.is_empty() && args.snapshot.is_none());
    assert_eq!(usize::from(args.udp_payload_size), crate::answer::query::MAX_UDP);
    assert!(args.rate_limit.is_none() && args.cookie_secret_file.is_none() && args.debug_top.is_none());
}

#[test]
fn flags_that_conflict_are_refused() {
    for (flags, message) in [
        (&["--zone", "a", "--zone", "A."][..], "given twice"),
        (&["--zone", "a", "--zone", "b.svc.a"], "--zone b.svc.a.: lies among the services of --zone a."),
        (&["--zone", "a", "--vertex-zone", "svc.a"], "--vertex-zone svc.a.: lies among the services"),
        (&["--zone", "a.b", "--vertex-zone", "b"], "--zone a.b.: lies among the names of --vertex-zone b."),
        (&["--vertex-zone", "b", "--vertex-zone", "a.b"], "--vertex-zone a.b.: lies among the names"),
        (&["--zone", "a", "--vertex-zone", "a"], "given twice"),
        (&["--vertex-zone", "10.in-addr.arpa"], "--reverse-zone"),
        (&["--vertex-zone", "a..b"], "labels separated by single dots"),
        (&["--zone", "10.in-addr.arpa"], "--reverse-zone"),
        (&["--reverse-zone", "a"], "in-addr.arpa or ip6.arpa"),
        (&["--reverse-zone", "1.0.0.10.in-addr.arpa"], "more than one address"),
        (&["--reverse-zone", "fd00.ip6.arpa"], "write a reverse zone as"),
        (&["--reverse-zone", "foo.in-addr.arpa"], "write a reverse zone as"),
        (&["--reverse-zone", "010.in-addr.arpa"], "write a reverse zone as"),
        (&["--reverse-zone", "1.1.0.0.10.in-addr.arpa"], "write a reverse zone as"),
        (&["--ns-address", "0.0.0.0"], "the address that clients use"),
        (&["--ns-address", "::ffff:0.0.0.0"], "the address that clients use"),
        (&["--notify", "10.0.0.1:0"], "leave the port out"),
        (&["--transfer-to", "::ffff:10.0.0.0/8"], "write a network as 10.0.0.0/8"),
        (&["--reverse-range", "private"], "write a network as 10.0.0.0/8"),
        (&["--reverse-exclude", "10.0.0.0/33"], "write a network as 10.0.0.0/8"),
        (&["--rate-limit", "1", "--rate-limit-exempt", "::ffff:0:0/90"], "write a network as 10.0.0.0/8"),
        (&["--listen", "tls://127.0.0.1:1"], "needs a certificate"),
        (&["--listen", "127.0.0.1:1", "--listen", "0.0.0.0:1"], "port of its own"),
        (&["--ttl", "3601"], "3601 is not in 0..=3600"),
        (&["--lameduck=-1s"], "write a time"),
        (&["--udp-payload-size", "511"], "511 is not in 512..=4096"),
        (&["--rate-limit", "0"], "0 is not in 1..=1000000"),
        (&["--rate-limit-exempt", "10.0.0.0/8"], "--rate-limit <N>"),
        (&["--debug-top", "9"], "--admin <ADDR:PORT>"),
        (&["--admin", "[::1]:1", "--debug-top", "1001"], "1001 is not in 1..=1000"),
    ] {
        let error = config(flags).unwrap_err();
        assert!(error.contains(message), "{flags:?}: {error}");
    }
    let long = format!("{0}.{0}.{0}.{1}", "x".repeat(63), "y".repeat(58));
    for flag in ["--zone", "--vertex-zone"] {
        assert!(config(&[flag, &long]).unwrap_err().starts_with(flag));
    }
    let below = config(&["--zone", "a", "--vertex-zone", "b.a", "--vertex-zone", "c.a"]).unwrap();
    assert_eq!(below.args.vertex_zone, ["b.a", "c.a"].map(|zone| zone.parse().unwrap()));
}
