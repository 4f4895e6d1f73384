use multinet_rails::nic::{Address, Interface, own_addresses};

use super::*;

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

#[test]
fn rails_are_chosen_by_alias_and_an_unknown_alias_is_an_error_with_those_that_exist() {
    let two = pod(&[("net1", Some("rail0")), ("net2", Some("rail1"))]);
    let unnamed = pod(&[("net1", None)]);
    type Case<'a> = (&'a Pod, &'a [&'a str], Result<&'a [&'a str], &'a str>);
    let cases: [Case<'_>; 6] = [
        (&two, &[], Ok(&["net1", "net2"])),
        (&two, &["rail1"], Ok(&["net2"])),
        (&two, &["rail1", "rail0"], Ok(&["net1", "net2"])),
        (
            &two,
            &["rail0", "rail7"],
            Err("--network rail7: this pod has no rail on it, only on rail0 (net1), rail1 (net2)"),
        ),
        (&unnamed, &["rail0"], Err("--network rail0: the networks of this pod's rails (net1) have no names")),
        (&pod(&[]), &["rail0"], Ok(&[])),
    ];
    for (pod, wanted, expected) in cases {
        let wanted: Vec<String> = wanted.iter().map(|alias| (*alias).to_owned()).collect();
        match (on_networks(pod, &wanted), expected) {
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
