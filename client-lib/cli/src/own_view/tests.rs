use clap::Parser;
use multinet_rails::nic::{Address, Interface, own_addresses};

use super::*;

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    view: OwnViewArgs,
}

fn args(line: &[&str]) -> OwnViewArgs {
    Line::try_parse_from([&["env"], line].concat()).unwrap_or_else(|error| panic!("{error}")).view
}

/// Returns a pod with rails on these networks, each named by its interface and alias.
fn pod(rails: &[(&str, Option<&str>)]) -> Pod {
    let interface = |(number, (name, _)): (usize, &(&str, Option<&str>))| {
        let mut interface = Interface::new(name, 2);
        interface.addresses = vec![Address::new(format!("192.168.{number}.5/24").parse().unwrap())];
        interface
    };
    let interfaces: Vec<Interface> = rails.iter().enumerate().map(interface).collect();
    let mut sources = Sources::default();
    sources.root = "/nonexistent".into();
    let mut pod = Pod::of(&interfaces, &own_addresses(&interfaces), &sources).unwrap();
    for (rail, (_, alias)) in pod.rails.iter_mut().zip(rails) {
        rail.network = alias.map(str::to_owned);
    }
    pod
}

fn view(rails: &[(&str, Option<&str>)], missing: &[&str]) -> OwnView {
    let missing = missing.iter().map(|reason| (*reason).to_owned()).collect();
    OwnView { pod: pod(rails), service: None, missing }
}

#[test]
fn rails_are_chosen_by_alias_and_an_unknown_alias_is_an_error_with_those_that_exist() {
    let two = view(&[("net1", Some("rail0")), ("net2", Some("rail1"))], &[]);
    let unnamed = view(&[("net1", None)], &[]);
    let no_dns = view(&[("net1", None)], &["no such name: what only DNS knows is left out"]);
    type Case<'a> = (&'a OwnView, &'a [&'a str], Result<&'a [&'a str], &'a str>);
    let cases: [Case<'_>; 7] = [
        (&two, &[], Ok(&["net1", "net2"])),
        (&two, &["rail1"], Ok(&["net2"])),
        (&two, &["rail1", "rail0"], Ok(&["net1", "net2"])),
        (
            &two,
            &["rail0", "rail7"],
            Err("--network rail7: this pod has no rail on it, only on rail0 (net1), rail1 (net2)"),
        ),
        (&unnamed, &["rail0"], Err("--network rail0: the networks of this pod's rails (net1) have no names")),
        (
            &no_dns,
            &["rail0"],
            Err(
                "--network rail0: the networks of this pod's rails (net1) have no names that are known here; no such name: ",
            ),
        ),
        (&view(&[], &[]), &["rail0"], Ok(&[])),
    ];
    for (view, wanted, expected) in cases {
        let wanted: Vec<String> = wanted.iter().map(|alias| (*alias).to_owned()).collect();
        match (on_networks(view, &wanted), expected) {
            (Ok(rails), Ok(expected)) => {
                assert_eq!(rails.iter().map(|rail| rail.name()).collect::<Vec<_>>(), expected);
            }
            (Err(error), Err(expected)) => assert!(error.to_string().starts_with(expected), "{error}"),
            (found, _) => panic!("{wanted:?}: {found:?}"),
        }
    }
}

#[test]
fn without_distances_a_gpu_has_all_rails() {
    let two = pod(&[("net1", None), ("net2", None)]);
    assert_eq!(nearest(two.rails.iter().collect(), Some(0)).len(), 2);
}

#[test]
fn an_address_is_waited_for_while_the_kernel_verifies_it() {
    let with = |name: &str, link, state, ip: &str| {
        let mut interface = Interface::new(name, 2);
        let mut address = Address::new(ip.parse().unwrap());
        address.state = state;
        (interface.link, interface.addresses) = (link, vec![address]);
        is_verifying(&interface)
    };
    let of = |name, link, state| with(name, link, state, "fd00::5/64");
    assert!(!with("net1", LinkState::Up, AddressState::Tentative, "fe80::5/64"));
    assert!(of("net1", LinkState::Up, AddressState::Tentative));
    assert!(!of("net1", LinkState::Up, AddressState::Usable));
    assert!(!of("net1", LinkState::Up, AddressState::Duplicate));
    assert!(!of("net1", LinkState::NoCarrier, AddressState::Tentative));
    assert!(!of("eth0", LinkState::Up, AddressState::Tentative));
}

#[test]
fn a_host_has_a_name_on_the_one_network_that_is_wanted() {
    let addresses = vec![(Some("rail1".to_owned()), [192, 168, 112, 5].into())];
    let service = Service { own_name: None, addresses };
    let on = |wanted: &[&str]| {
        let wanted: Vec<String> = wanted.iter().map(|alias| (*alias).to_owned()).collect();
        on_network("worker-0.train.vision.svc.multinet", &wanted, &service)
    };
    assert_eq!(on(&["rail1"]), "worker-0.rail1._net.train.vision.svc.multinet");
    for others in [&[][..], &["rail0", "rail1"], &["from-a-file"]] {
        assert_eq!(on(others), "worker-0.train.vision.svc.multinet", "{others:?}");
    }
}

#[test]
fn rails_come_in_the_order_of_their_aliases() {
    let swapped = pod(&[("net1", Some("rail10")), ("net2", Some("rail2")), ("net3", None)]);
    let mut rails: Vec<&Rail> = swapped.rails.iter().collect();
    rails.sort_by_cached_key(|rail| place(rail));
    assert_eq!(rails.iter().map(|rail| rail.name()).collect::<Vec<_>>(), ["net2", "net1", "net3"]);
}

#[test]
fn a_launcher_waits_for_addresses_and_a_worker_for_its_nic() {
    let mpi = args(&["--for", "mpi", "--network", "rail0"]);
    let service = |last: &[u8]| {
        let address = |last: &u8| (Some("rail0".to_owned()), [192, 168, 111, *last].into());
        Some(Service { own_name: None, addresses: last.iter().map(address).collect() })
    };
    let awaited = |unusable: &[&str], service| {
        let mut view = OwnView { service, ..view(&[], &[]) };
        view.pod.unusable = unusable.iter().map(|reason| (*reason).to_owned()).collect();
        mpi.awaited(&view)
    };
    assert_eq!(awaited(&[], service(&[5, 6])), None);
    let one = awaited(&[], service(&[5])).unwrap();
    assert!(one.starts_with("OMPI_MCA_btl_tcp_if_include: 192.168.111.5 is the only address"), "{one}");
    assert!(awaited(&[], None).unwrap().contains("this pod has no second NIC"));
    assert_eq!(awaited(&["net1 is down"], service(&[5, 6])).as_deref(), Some("net1 is down"));
}

/// The server takes queries, and answers none.
#[tokio::test]
async fn a_wait_ends_while_dns_does_not_answer() {
    let silent = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let server = silent.local_addr().unwrap().to_string();
    let args = args(&["--service", "train.vision.svc.multinet", "--server", &server]);
    let view = args.view(Duration::from_millis(10)).await.unwrap();
    let said = view.missing.concat();
    let (begin, end) =
        ("DNS has not answered about train.vision.svc.multinet: ", ": what only DNS knows is left out");
    assert!(said.starts_with(begin) && said.ends_with(end), "{said}");
}
