//! Operations on the objects, the watches and the controller.

use std::collections::{BTreeMap, BTreeSet};

use multinet_controller::work::OptionalApi;
use multinet_crds::{IpFamily, NetworkKind};
use multinet_runtime::ObjectKey;
use proptest::prelude::*;
use proptest::sample::select;

use super::objects::*;
use super::services::*;
use super::watches::Kind;
use super::writer::Fate;

/// One operation.
#[derive(Clone, Debug)]
pub(crate) enum Operation {
    /// Creates a pod, or changes its mutable fields.
    Pod(ObjectKey, Pod),
    /// Deletes a pod, and creates it again at once.
    Recreate(ObjectKey, Pod),
    Ready(ObjectKey, bool),
    /// Gives the pod a sandbox, or removes it.
    Sandbox(ObjectKey, bool),
    Report(ObjectKey, Option<Report>),
    /// Begins to delete a pod.
    Terminate(ObjectKey),
    RemovePod(ObjectKey),
    /// Creates a claim that is reserved for the pods with these names. The last name is that of
    /// a deleted pod.
    Claim(ObjectKey, Claim, Vec<usize>),
    RemoveClaim(ObjectKey),
    Devices(ObjectKey, Option<DeviceSlice>),
    Node(ObjectKey, Option<Node>),
    Network(NetworkKind, ObjectKey, bool),
    CoreService(ObjectKey, Option<CoreService>),
    Service(ObjectKey, ServiceSpec),
    RecreateService(ObjectKey, ServiceSpec),
    /// Begins to delete a service.
    TerminateService(ObjectKey),
    RemoveService(ObjectKey),
    CollectGarbage,
    /// Creates a slice of another writer for a service.
    Foreign(ObjectKey, &'static str, bool),
    /// Changes one of all slices.
    EditSlice(usize, Edit),
    EditMirror(usize, Edit),
    Serve(OptionalApi, bool),

    Deliver(Kind, usize),
    DeliverAll,
    Lose(Kind),
    List(Kind, usize, bool),
    Repeat(Kind, usize),

    /// Lets the writer take the next service.
    Take,
    /// Advances one of the services in progress.
    Step(usize, Fate),
    /// Lets the writer process this number of services without failures.
    Work(usize),
    Wait,
    /// Changes a slice while the writer lists it, or just before.
    Race(usize, Edit, bool),
    /// Delivers all events and performs all writes.
    Rest,
    /// Ends leadership and begins it again.
    Lead,
    /// Kills the controller and starts it again, with lists that lack this number of events.
    Restart(usize),
}

/// An edit of a slice by a user.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Edit {
    Delete,
    /// Deletes the slice, but a finalizer keeps it.
    Hold,
    Empty,
    Duplicate,
    /// Creates another slice with the same content.
    Copy,
    Unready,
    Ports,
    Labels,
    /// Removes the label of the slice's service or writer.
    Unmanage,
    Unname,
    /// Labels the slice as that of another service.
    Rename(&'static str),
    /// Labels the slice as that of another writer.
    Steal,
    Disown,
    Annotate,
    /// Changes the network of the slice.
    Network,
}

pub(crate) fn operation() -> impl Strategy<Value = Operation> {
    use Operation as O;
    let services = (named(&SERVICES), spec()).prop_flat_map(|(key, spec)| {
        prop_oneof![
            4 => Just(O::Service(key.clone(), spec.clone())),
            1 => Just(O::RecreateService(key, spec)),
        ]
    });
    let objects = prop_oneof![
        8 => (named(&PODS), pod()).prop_map(|(key, pod)| O::Pod(key, pod)),
        2 => (named(&PODS), pod()).prop_map(|(key, pod)| O::Recreate(key, pod)),
        5 => (named(&PODS), any::<bool>()).prop_map(|(key, ready)| O::Ready(key, ready)),
        1 => (named(&PODS), prop::bool::weighted(0.8)).prop_map(|(key, has)| O::Sandbox(key, has)),
        5 => (named(&PODS), prop::option::weighted(0.9, report())).prop_map(|(key, report)| O::Report(key, report)),
        2 => named(&PODS).prop_map(O::Terminate),
        2 => named(&PODS).prop_map(O::RemovePod),
        5 => (named(&CLAIMS), claim(), prop::collection::vec(0..=PODS.len(), 0..3))
            .prop_map(|(key, claim, reserved)| O::Claim(key, claim, reserved)),
        1 => named(&CLAIMS).prop_map(O::RemoveClaim),
        3 => (unnamespaced(&DEVICE_SLICES), prop::option::weighted(0.8, device_slice()))
            .prop_map(|(key, slice)| O::Devices(key, slice)),
        3 => (unnamespaced(&NODES), prop::option::weighted(0.8, prop::option::of(select(&["a", "b"][..]))))
            .prop_map(|(key, zone)| O::Node(key, zone.map(|zone| Node { zone }))),
        3 => network(),
        2 => (named(&CORE_SERVICES), prop::option::weighted(0.8, core_service()))
            .prop_map(|(key, service)| O::CoreService(key, service)),
        8 => services,
        1 => named(&SERVICES).prop_map(O::TerminateService),
        1 => named(&SERVICES).prop_map(O::RemoveService),
        1 => Just(O::CollectGarbage),
        2 => (named(&["foreign-0", "foreign-1"]), select(&SERVICES[..]), any::<bool>())
            .prop_map(|(key, service, is_named)| O::Foreign(key, service, is_named)),
        4 => (any::<usize>(), edit()).prop_map(|(place, edit)| O::EditSlice(place, edit)),
        4 => (any::<usize>(), edit()).prop_map(|(place, edit)| O::EditMirror(place, edit)),
        1 => (select(&OptionalApi::ALL[..]), prop::bool::weighted(0.7)).prop_map(|(api, is)| O::Serve(api, is)),
    ];
    let kind = || select(&Kind::ALL[..]);
    let watches = prop_oneof![
        12 => (kind(), 1usize..4).prop_map(|(kind, count)| O::Deliver(kind, count)),
        6 => Just(O::DeliverAll),
        2 => kind().prop_map(O::Lose),
        3 => (kind(), 0usize..8, prop::bool::weighted(0.2))
            .prop_map(|(kind, ahead, breaks_off)| O::List(kind, ahead, breaks_off)),
        2 => (kind(), any::<usize>()).prop_map(|(kind, place)| O::Repeat(kind, place)),
    ];
    let controller = prop_oneof![
        6 => Just(O::Take),
        14 => (any::<usize>(), fate()).prop_map(|(job, fate)| O::Step(job, fate)),
        6 => (1usize..6).prop_map(O::Work),
        2 => Just(O::Wait),
        4 => (any::<usize>(), edit(), any::<bool>()).prop_map(|(place, edit, before)| O::Race(place, edit, before)),
        1 => Just(O::Rest),
        1 => Just(O::Lead),
        1 => (0usize..8).prop_map(O::Restart),
    ];
    prop_oneof![5 => objects, 3 => watches, 3 => controller]
}

/// Generates a key with one of these names. Most keys are in the first namespace.
fn named(names: &'static [&'static str]) -> impl Strategy<Value = ObjectKey> {
    let namespace = prop::bool::weighted(0.2).prop_map(|other| NAMESPACES[usize::from(other)]);
    (namespace, select(names)).prop_map(|(namespace, name)| key(namespace, name))
}

fn unnamespaced(names: &'static [&'static str]) -> impl Strategy<Value = ObjectKey> {
    select(names).prop_map(|name| key("", name))
}

fn pod() -> impl Strategy<Value = Pod> {
    let hostname = (prop::option::of(select(&["h0", "h1"][..])), prop::option::of(Just("hosts")));
    let claim = (select(&CLAIMS[..]), prop::option::of(select(&TEMPLATES[..])), prop::bool::weighted(0.8))
        .prop_map(|(claim, template, is_made)| match template {
            Some(template) => ClaimUse::Template(template, is_made.then_some(claim)),
            None => ClaimUse::Direct(claim),
        });
    let phase = prop_oneof![
        1 => Just("Pending"), 12 => Just("Running"), 1 => Just("Failed"), 1 => Just("Succeeded")
    ];
    let place = (
        prop::option::weighted(0.9, select(&NODES[..])),
        (prop::bool::weighted(0.05), prop::bool::weighted(0.9)),
        phase,
        prop::option::weighted(0.9, prop::bool::weighted(0.8)),
    );
    let reports = (
        prop::option::weighted(0.8, report()),
        prop::option::weighted(0.2, report()),
        prop::option::of(select(&ASKED[..])),
    );
    (labels(), hostname, place, reports, prop::collection::vec(claim, 0..3)).prop_map(
        |(
            labels,
            (hostname, subdomain),
            (node, (host_network, has_sandbox), phase, ready),
            (report, old_report, asked),
            claims,
        )| Pod {
            uid: String::new(),
            created: 0,
            labels,
            noise: 0,
            phase,
            is_deleted: false,
            ready,
            ready_since: 0,
            hostname,
            subdomain,
            node,
            host_network,
            has_sandbox,
            asked,
            report,
            old_report,
            claims,
        },
    )
}

fn labels() -> impl Strategy<Value = BTreeMap<&'static str, &'static str>> {
    let value = || prop::option::weighted(0.8, select(&VALUES[..]));
    (value(), value()).prop_map(|(app, tier)| {
        let pairs = [("app", app), ("tier", tier)];
        pairs.into_iter().filter_map(|(key, value)| Some((key, value?))).collect()
    })
}

/// Generates places of addresses, most of which can be published.
fn addresses() -> impl Strategy<Value = Vec<usize>> {
    let good = ADDRESSES.iter().position(|(_, meaning)| meaning.is_none()).unwrap_or_default();
    let place = prop_oneof![6 => 0..good, 1 => good..ADDRESSES.len()];
    prop_oneof![1 => Just(Vec::new()), 6 => prop::collection::vec(place, 1..3)]
}

fn report() -> impl Strategy<Value = Report> {
    let interface = (
        select(&REPORTED[..]),
        prop::bool::weighted(0.15),
        addresses(),
        prop::option::of(Just("AE:11:22:33:44:55")),
        prop::option::of(select(&[("0000:18:00.2", "mlx5_2"), ("0000:3b:00.1", "mlx5_3,mlx5_4")][..])),
    )
        .prop_map(|(network, is_default, addresses, mac, function)| Interface {
            network,
            is_default,
            addresses,
            mac,
            function,
        });
    prop_oneof![
        9 => prop::collection::vec(interface, 1..4).prop_map(Report::Interfaces),
        1 => select(&MALFORMED[..]).prop_map(Report::Malformed),
    ]
}

fn claim() -> impl Strategy<Value = Claim> {
    let device = (
        (select(&NODES[..]), select(&DEVICES[..])),
        prop::bool::weighted(0.9),
        prop::option::of(prop::bool::weighted(0.8)),
        addresses(),
        prop::option::of(select(&["eth1", "eth2"][..])),
    )
        .prop_map(|((pool, device), is_allocated, ready, addresses, interface)| ClaimDevice {
            pool,
            device,
            is_allocated,
            ready,
            addresses,
            interface,
        });
    (select(&CLASSES[..]), prop::collection::vec(device, 1..3)).prop_map(|(class, devices)| Claim {
        reserved_for: Vec::new(),
        class,
        devices,
    })
}

fn device_slice() -> impl Strategy<Value = DeviceSlice> {
    let device = (select(&DEVICES[..]), select(&[("mlx5_0", 0u16), ("mlx5_1", 1)][..]));
    (select(&NODES[..]), 1i64..3, prop::collection::vec(device, 0..3)).prop_map(
        |(pool, generation, devices)| DeviceSlice {
            pool,
            generation,
            devices: devices.into_iter().collect(),
        },
    )
}

fn network() -> impl Strategy<Value = Operation> {
    let key = prop_oneof![
        3 => named(&RAILS).prop_map(|key| (NetworkKind::NetworkAttachmentDefinition, key)),
        1 => unnamespaced(&CLASSES).prop_map(|key| (NetworkKind::DeviceClass, key)),
        1 => named(&TEMPLATES).prop_map(|key| (NetworkKind::ResourceClaimTemplate, key)),
    ];
    (key, prop::bool::weighted(0.7)).prop_map(|((kind, key), exists)| Operation::Network(kind, key, exists))
}

fn core_service() -> impl Strategy<Value = CoreService> {
    prop_oneof![
        6 => Just(CoreService::Headless),
        1 => Just(CoreService::WithSelector),
        1 => Just(CoreService::WithAddress),
        1 => Just(CoreService::ExternalName),
    ]
}

fn spec() -> impl Strategy<Value = ServiceSpec> {
    let namespace = || prop::option::weighted(0.3, select(&NAMESPACES[..]));
    let network = prop_oneof![
        4 => (select(&RAILS[..]), namespace()).prop_map(|(name, namespace)| {
            NetworkUse { kind: NetworkKind::NetworkAttachmentDefinition, namespace, name }
        }),
        2 => select(&CLASSES[..])
            .prop_map(|name| NetworkUse { kind: NetworkKind::DeviceClass, namespace: None, name }),
        1 => (select(&TEMPLATES[..]), namespace())
            .prop_map(|(name, namespace)| NetworkUse { kind: NetworkKind::ResourceClaimTemplate, namespace, name }),
    ];
    let families = prop_oneof![
        3 => Just(IpFamily::ALL.into()), 1 => Just(BTreeSet::from([IpFamily::Ipv4])),
        1 => Just(BTreeSet::from([IpFamily::Ipv6]))
    ];
    let ports = prop_oneof![
        1 => Just(Vec::new()), 2 => Just(vec![("rdma", 18515)]), 1 => Just(vec![("", 9), ("rdma", 18516)])
    ];
    let flaw = prop_oneof![
        Just(Flaw::NoNetworks),
        Just(Flaw::AliasTwice),
        Just(Flaw::NoValues),
        Just(Flaw::UnknownAlias)
    ];
    let mirror = (select(&CORE_SERVICES[..]), prop::option::weighted(0.3, any::<usize>()));
    (
        prop::option::of(select(&["t0", "t1"][..])),
        prop::option::weighted(0.9, selector()),
        prop::collection::vec(network, 1..4).prop_map(distinct),
        ports,
        families,
        prop::bool::weighted(0.2),
        prop::option::weighted(0.4, mirror),
        prop::option::weighted(0.1, flaw),
    )
        .prop_map(|(label, selector, networks, ports, families, publishes_not_ready, mirror, flaw)| {
            let mirror = mirror.map(|(name, only)| (name, only.map(|place| place % networks.len())));
            ServiceSpec { label, selector, networks, ports, families, publishes_not_ready, mirror, flaw }
        })
}

/// Removes networks that repeat an earlier one in any of the namespaces that the service may be in.
fn distinct(networks: Vec<NetworkUse>) -> Vec<NetworkUse> {
    let mut distinct: Vec<NetworkUse> = Vec::new();
    for network in networks {
        let is_again = distinct.iter().any(|known| {
            let namespaces = [known.namespace, network.namespace];
            (known.kind, known.name) == (network.kind, network.name)
                && (namespaces.contains(&None) || known.namespace == network.namespace)
        });
        if !is_again {
            distinct.push(network);
        }
    }
    distinct
}

fn selector() -> impl Strategy<Value = Vec<Requirement>> {
    let label = || select(&LABELS[..]);
    let values = || prop::sample::subsequence(&VALUES[..], 1..=2);
    let requirement = prop_oneof![
        (label(), values()).prop_map(|(key, values)| Requirement::In(key, values)),
        (label(), values()).prop_map(|(key, values)| Requirement::NotIn(key, values)),
        label().prop_map(Requirement::Exists),
        label().prop_map(Requirement::Absent),
    ];
    let equal = || prop::option::of(select(&VALUES[..]));
    prop_oneof![
        4 => (equal(), equal()).prop_map(|(app, tier)| {
            let pairs = [("app", app), ("tier", tier)];
            pairs.into_iter().filter_map(|(key, value)| Some(Requirement::Equal(key, value?))).collect()
        }),
        3 => requirement.clone().prop_map(|requirement| vec![requirement]),
        1 => (select(&VALUES[..]), requirement)
            .prop_map(|(value, requirement)| vec![Requirement::Equal("app", value), requirement]),
        1 => Just(Vec::new()),
    ]
}

fn edit() -> impl Strategy<Value = Edit> {
    prop_oneof![
        3 => Just(Edit::Delete),
        1 => Just(Edit::Hold),
        1 => Just(Edit::Empty),
        1 => Just(Edit::Duplicate),
        1 => Just(Edit::Copy),
        1 => Just(Edit::Unready),
        1 => Just(Edit::Ports),
        1 => Just(Edit::Labels),
        1 => Just(Edit::Unmanage),
        1 => Just(Edit::Unname),
        1 => select(&SERVICES[..]).prop_map(Edit::Rename),
        1 => Just(Edit::Steal),
        1 => Just(Edit::Disown),
        1 => Just(Edit::Annotate),
        1 => Just(Edit::Network),
    ]
}

fn fate() -> impl Strategy<Value = Fate> {
    prop_oneof![
        12 => Just(Fate::Fine), 3 => Just(Fate::Conflict), 1 => Just(Fate::Failed), 2 => Just(Fate::Lost),
        1 => Just(Fate::Vanished)
    ]
}
