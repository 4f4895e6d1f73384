use super::*;
use crate::objects::Endpoint;

fn slice(alias: &str, port: Option<u16>, endpoints: &[(&str, &str)]) -> Slice {
    let ports = port.map(|number| Port { name: "p".into(), protocol: "_tcp", number });
    Slice {
        service: "infer".into(),
        vertex: None,
        alias: alias.into(),
        ports: ports.into_iter().collect(),
        endpoints: endpoints
            .iter()
            .map(|&(host, address)| Endpoint {
                host: host.into(),
                is_named: !host.contains('-'),
                address: address.parse().unwrap(),
                text: format!("addr={address}"),
            })
            .collect(),
    }
}

fn keys(base: &str, slices: &[Slice]) -> Keys {
    of_service("/skydns", [base.to_owned()].into_iter(), 5, slices.iter(), usize::MAX)
}

#[test]
fn a_service_has_the_keys_of_the_layout() {
    let keys = keys("infer.vision.svc.z", &[slice("r", Some(7), &[("h", "10.0.0.1")])]);
    let address = |group: &str| {
        format!(r#"{{"host":"10.0.0.1","port":7,"ttl":5,"targetstrip":1,"group":"{group}","by":"multinet"}}"#)
    };
    let text =
        |group: &str| format!(r#"{{"text":"addr=10.0.0.1","ttl":5,"group":"{group}","by":"multinet"}}"#);
    let base = "/skydns/z/svc/vision/infer";
    let expected: Keys = [
        ("h/10-0-0-1-7", address(".")),
        ("h/_txt/r-10-0-0-1", text(".")),
        ("_tcp/_p/h/10-0-0-1-7", address("_p._tcp")),
        ("_tcp/_p/h/_txt/r-10-0-0-1", text("_p._tcp")),
        ("_net/r/h/10-0-0-1-7", address("r")),
        ("_net/r/h/_txt/r-10-0-0-1", text("r")),
        ("_net/r/_tcp/_p/h/10-0-0-1-7", address("_p._tcp.r")),
        ("_net/r/_tcp/_p/h/_txt/r-10-0-0-1", text("_p._tcp.r")),
    ]
    .into_iter()
    .map(|(key, value)| (format!("{base}/{key}"), value))
    .collect();
    assert_eq!(keys, expected);
}

#[test]
fn an_endpoint_without_a_named_port_has_no_srv_record() {
    let keys = keys("s", &[slice("r", None, &[("h", "fd00::1")])]);
    assert!(keys["/skydns/s/h/fd00--1"].contains(r#""port":-1,"#));
    assert!(keys.keys().all(|key| !key.contains("_tcp")));
}

#[test]
fn an_endpoint_in_two_slices_has_the_ports_of_both() {
    let slices = [slice("r", Some(7), &[("h", "10.0.0.1")]), slice("r", Some(8), &[("h", "10.0.0.1")])];
    let keys = keys("s", &slices);
    assert!(keys.contains_key("/skydns/s/h/10-0-0-1-7") && keys.contains_key("/skydns/s/h/10-0-0-1-8"));
    assert_eq!(keys.keys().filter(|key| key.starts_with("/skydns/s/h/_txt/")).count(), 1);
}

#[test]
fn every_value_has_a_time_to_live_and_the_mark() {
    let slices = [slice("r", Some(7), &[("h", "10.0.0.1"), ("i", "fd00::1")])];
    let mut keys = of_service("/p", ["s".to_owned()].into_iter(), 0, slices.iter(), usize::MAX);
    keys.extend(of_zone("/p", "z", 0, true));
    keys.extend([of_address("/p", "10.0.0.1".parse().unwrap(), "h.s", 0)]);
    for (key, value) in keys {
        let value: serde_json::Value = serde_json::from_str(&value).unwrap();
        assert!(value["ttl"].as_u64() > Some(0), "{key} {value}");
        assert!(is_ours(value.to_string().as_bytes()), "{key} {value}");
    }
    for foreign in [&b"{\"host\":\"10.0.0.1\"}"[..], b"{\"by\":\"other\"}", b"\"multinet\"", b"no JSON", b""]
    {
        assert!(!is_ours(foreign));
    }
    assert!(is_readable(b"{\"host\":\"10.0.0.1\",\"other\":[]}"));
    for unreadable in [&b"no JSON"[..], b"[]", b"{\"ttl\":-1}", b"{\"host\":1}"] {
        assert!(!is_readable(unreadable));
    }
}

#[test]
fn names_too_long_for_dns_have_no_keys() {
    let long = "x".repeat(63);
    let base = [long.as_str(); 3].join(".");
    // 191 characters: a host of 61 fits, and one of 62 does not.
    for (length, fits) in [(61, true), (62, false)] {
        let host = "h".repeat(length);
        let keys = keys(&base, &[slice("r", None, &[(&host, "10.0.0.1")])]);
        let with = |host: &str| keys.contains_key(&format!("{}/{host}/10-0-0-1", path("/skydns", &base)));
        assert_eq!((with(&host), with("10-0-0-1")), (fits, !fits));
    }
    let slices = [slice("r", None, &[("h", "10.0.0.1")])];
    assert!(pointers(&"x".repeat(251), slices.iter(), 1).len() == 1);
    assert!(pointers(&"x".repeat(252), slices.iter(), 1).is_empty());
}

#[test]
fn the_number_of_keys_is_known_before_they_are_made() {
    for (port, bases) in [(Some(7), 1), (None, 1), (Some(7), 2)] {
        let slices = [slice("r", port, &[("h", "10.0.0.1"), ("i", "10.0.0.2")])];
        let names = ["s", "t"].map(str::to_owned).into_iter().take(bases);
        let made = of_service("/skydns", names, 5, slices.iter(), 2).len();
        let pointers = pointers("s", slices.iter(), 2).len();
        let share = Share::new(slices.iter(), bases);
        assert_eq!(share, Share { endpoints: 2, left_out: 0, keys: made + pointers });
    }
}

#[test]
fn a_service_beyond_its_limit_has_the_keys_of_its_first_endpoints() {
    let mut slices = ["r", "s"].map(|alias| slice(alias, None, &[]));
    for (index, slice) in (0..).zip(&mut slices) {
        slice.ports =
            (1..=100).map(|number| Port { name: format!("p{number}"), protocol: "_tcp", number }).collect();
        slice.endpoints = (0..64)
            .map(|number| Endpoint {
                host: format!("h{number:02}"),
                is_named: true,
                address: [10, 0, index, number].into(),
                text: "t".into(),
            })
            .collect();
    }
    let share = Share::new(slices.iter(), 1);
    // Of 603 keys each, which is both endpoints of 16 hosts, and one of the next.
    assert_eq!(share, Share { endpoints: 33, left_out: 128 - 33, keys: 33 * 603 });
    let keys = of_service("/skydns", ["b".to_owned()].into_iter(), 5, slices.iter(), share.endpoints);
    assert!(keys.len() <= MAX_KEYS_OF_SERVICE);
    for (host, networks) in [("h00", 2), ("h15", 2), ("h16", 1), ("h17", 0)] {
        let of_host =
            |alias| keys.keys().any(|key| key.starts_with(&format!("/skydns/b/_net/{alias}/{host}/")));
        assert_eq!(["r", "s"].into_iter().filter(|alias| of_host(*alias)).count(), networks, "{host}");
    }
    assert_eq!(pointers("b", slices.iter(), share.endpoints).len(), 33);
    slices.reverse();
    let again = of_service("/skydns", ["b".to_owned()].into_iter(), 5, slices.iter(), share.endpoints);
    assert!(keys == again);
}

#[test]
fn reverse_names_are_paths() {
    let path = |address: &str| reverse_path("/skydns", address.parse().unwrap());
    assert_eq!(path("192.168.111.5"), "/skydns/arpa/in-addr/192/168/111/5");
    assert_eq!(
        path("fd00::5"),
        "/skydns/arpa/ip6/f/d/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0/0/5"
    );
}

#[test]
fn a_reverse_name_prefers_a_hostname() {
    let slices = [slice("r", None, &[("10-0-0-1", "10.0.0.1"), ("z", "10.0.0.1"), ("a", "10.0.0.1")])];
    assert_eq!(
        pointers("s", slices.iter(), 3),
        BTreeMap::from([("10.0.0.1".parse().unwrap(), "a".to_owned())])
    );
}
