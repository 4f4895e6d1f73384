//! Single changes to a cluster at rest, each of which must cost no more than necessary.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use multinet_controller::index::ClusterIndex;
use multinet_crds::{MultiNetworkEndpointSlice, labels};
use multinet_runtime::ObjectKey;
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

use super::check::{check, slices_of};
use super::cluster::{Cluster, Write};
use super::edits::{change_pod, edit_mirror, edit_slice, set_ready};
use super::expected::{Network, services_of};
use super::objects::{CORE_SERVICES, DEVICES, DeviceSlice, NAMESPACES, NODES, Nad, Node, RAILS, key};
use super::operations::Edit;
use super::services::Service;
use super::simulation::Simulation;
use super::watches::Kind;
use super::writer::Job;

type Checked = Result<(), TestCaseError>;

/// Checks that planning all services once more writes nothing, and that neither does a list of
/// known objects.
pub(crate) async fn planning_again_writes_nothing(simulation: &mut Simulation) -> Checked {
    simulation.cluster.writes.clear();
    simulation.queue_all();
    simulation.rest().await;
    prop_assert_eq!(&simulation.cluster.writes, &[], "without a change");
    for kind in Kind::ALL {
        simulation.watches().break_watch(kind);
        simulation.watches().deliver(kind, usize::MAX);
        let queued: Vec<ObjectKey> = simulation.take_all().iter().map(Job::service).collect();
        prop_assert_eq!(queued, [], "a list of unchanged objects, of {:?}", kind);
    }
    Ok(())
}

/// Checks that a change of a pod's readiness costs one write for each slice that contains the pod.
pub(crate) async fn a_pod_costs_one_write_per_slice(simulation: &mut Simulation) -> Checked {
    let pods: Vec<ObjectKey> = simulation.cluster.pods.iter().map(|(key, _)| key.clone()).collect();
    for name in pods {
        let pod = simulation.cluster.pods.get(&name).cloned().expect("the pod");
        let selecting = services_of(simulation.cluster.services.iter(), &name, &pod);
        let slices = holding(&simulation.cluster, |slice| holds_pod(slice, &pod.uid));
        change_pod(&mut simulation.cluster, &name, |pod| set_ready(pod, pod.ready != Some(true)));
        costs(simulation, Kind::Pods, &selecting, &slices).await?;
        let now = simulation.cluster.pods.get(&name).expect("the pod");
        if now.ready == Some(true) {
            check_times(simulation, &slices, now.ready_since)?;
        }
    }
    Ok(())
}

/// Checks that consecutive writes need not wait for the watch, and that each is planned on the
/// result of the one before.
pub(crate) async fn own_writes_are_known(simulation: &mut Simulation) -> Checked {
    simulation.cluster.outdated = 0;
    let pods: Vec<ObjectKey> = simulation.cluster.pods.iter().map(|(key, _)| key.clone()).collect();
    for name in pods.iter().chain(&pods) {
        change_pod(&mut simulation.cluster, name, |pod| set_ready(pod, pod.ready != Some(true)));
        simulation.watches().deliver(Kind::Pods, usize::MAX);
        let jobs = simulation.take_all();
        jobs.into_iter().for_each(|job| simulation.finish(job));
    }
    prop_assert_eq!(simulation.cluster.outdated, 0, "writes that were planned on an old version");
    simulation.rest().await;
    check(simulation)
}

/// Checks that a change of a node's zone costs one write for each slice with an endpoint on the
/// node.
pub(crate) async fn a_zone_costs_one_write_per_slice(simulation: &mut Simulation) -> Checked {
    for name in NODES {
        let node = key("", name);
        let selecting = (simulation.cluster.pods.iter().filter(|(_, pod)| pod.node == Some(name)))
            .flat_map(|(key, pod)| services_of(simulation.cluster.services.iter(), key, pod))
            .collect();
        let on_node = |slice: &MultiNetworkEndpointSlice| {
            slice.spec.endpoints.iter().any(|endpoint| endpoint.node_name.as_deref() == Some(name))
        };
        let slices = holding(&simulation.cluster, on_node);
        simulation.cluster.put(&node, Node { zone: Some("c") });
        costs(simulation, Kind::Nodes, &selecting, &slices).await?;
    }
    Ok(())
}

/// Checks that a created or deleted network affects the services that refer to it, but writes no
/// slices.
pub(crate) async fn a_network_costs_no_write(simulation: &mut Simulation) -> Checked {
    for name in RAILS {
        let nad = key(NAMESPACES[0], name);
        let refers = |service: &&(&ObjectKey, &Service)| {
            service.1.spec.networks.iter().any(|network| {
                let meant = Network::meant(network, &service.0.namespace);
                meant.kind == "NetworkAttachmentDefinition"
                    && (meant.namespace.as_str(), meant.name.as_str()) == (NAMESPACES[0], name)
            })
        };
        let services: Vec<_> = simulation.cluster.services.iter().collect();
        let referring = services.iter().filter(refers).map(|(key, _)| (*key).clone()).collect();
        if simulation.cluster.nads.remove(&nad).is_none() {
            simulation.cluster.put(&nad, Nad);
        }
        costs(simulation, Kind::Nads, &referring, &BTreeSet::new()).await?;
    }
    Ok(())
}

/// Checks that device details in a newer generation of a pool take effect at once, and those in an
/// older one never.
pub(crate) async fn the_newest_generation_counts(simulation: &mut Simulation) -> Checked {
    let newest: BTreeMap<_, _> = DEVICES.iter().map(|name| (*name, ("mlx5_9", 9))).collect();
    for (name, pool) in [("z0", NODES[0]), ("z1", NODES[1])] {
        let devices = newest.clone();
        simulation.cluster.put(&key("", name), DeviceSlice { pool, generation: 9, devices });
        simulation.rest().await;
        check(simulation)?;
    }
    let devices = DEVICES.iter().map(|name| (*name, ("mlx5_8", 8))).collect();
    let older = DeviceSlice { pool: NODES[0], generation: 8, devices };
    simulation.cluster.put(&key("", "a0"), older);
    costs(simulation, Kind::Devices, &BTreeSet::new(), &BTreeSet::new()).await
}

/// Checks that changes that concern no service cause no work.
pub(crate) fn unrelated_changes_cause_no_work(simulation: &mut Simulation) -> Checked {
    let pods: Vec<ObjectKey> = simulation.cluster.pods.iter().map(|(key, _)| key.clone()).collect();
    for name in pods {
        change_pod(&mut simulation.cluster, &name, |pod| pod.noise += 1);
    }
    simulation.watches().deliver(Kind::Pods, usize::MAX);
    let queued: Vec<ObjectKey> = simulation.take_all().iter().map(Job::service).collect();
    prop_assert_eq!(queued, []);
    Ok(())
}

/// Checks that slices and mirrors that lose their service's name get it back.
pub(crate) async fn removed_service_labels_come_back(simulation: &mut Simulation) -> Checked {
    for place in 0..simulation.cluster.slices.objects.len() {
        edit_slice(&mut simulation.cluster, place, Edit::Unname);
    }
    for place in 0..simulation.cluster.mirrors.objects.len() {
        edit_mirror(&mut simulation.cluster, place, Edit::Unname);
    }
    simulation.rest().await;
    check(simulation)
}

/// Delivers the change. Checks that only the services in `concerned` are planned, that exactly
/// `slices` are written, and that the result is correct.
async fn costs(
    simulation: &mut Simulation,
    kind: Kind,
    concerned: &BTreeSet<ObjectKey>,
    slices: &BTreeSet<ObjectKey>,
) -> Checked {
    simulation.watches().deliver(kind, usize::MAX);
    simulation.cluster.writes.clear();
    let jobs = simulation.take_all();
    let queued: BTreeSet<ObjectKey> = jobs.iter().map(Job::service).collect();
    let strangers: Vec<_> =
        queued.difference(concerned).filter(|key| is_valid(&simulation.cluster, key)).collect();
    prop_assert!(strangers.is_empty(), "{:?} are planned again because of {:?}", strangers, kind);
    jobs.into_iter().for_each(|job| simulation.finish(job));
    let writes = simulation.cluster.writes.iter().filter_map(|write| match write {
        Write::Create(key) | Write::Update(key) | Write::Delete(key) => Some(key),
        Write::Status(_) => None,
    });
    // Writes of mirrors are not predicted: the change may affect an address that several endpoints
    // have.
    let mut written: Vec<ObjectKey> = writes.filter(|key| !is_mirror(key)).cloned().collect();
    written.sort();
    prop_assert_eq!(written, slices.iter().cloned().collect::<Vec<_>>(), "slices that are written");
    simulation.rest().await;
    check(simulation)
}

/// Returns whether this is the key of a mirror's slice, whose name begins with that of a core
/// Service.
fn is_mirror(key: &ObjectKey) -> bool {
    CORE_SERVICES.iter().any(|service| key.name.starts_with(service))
}

/// Checks the times of changes in the slices.
fn check_times(simulation: &Simulation, slices: &BTreeSet<ObjectKey>, since: i64) -> Checked {
    for slice in slices.iter().filter_map(|key| simulation.cluster.slices.get(key)) {
        let annotations = slice.metadata.annotations.as_ref();
        let told = annotations.and_then(|annotations| annotations.get(labels::LAST_CHANGE_TRIGGER_TIME));
        let told = told.and_then(|text| text.parse::<Timestamp>().ok());
        prop_assert_eq!(told.map(Timestamp::as_second), Some(since), "{:?}", slice.metadata.name);
    }
    Ok(())
}

/// Returns whether the service is valid now. The slices of an invalid service do not change.
fn is_valid(cluster: &Cluster, key: &ObjectKey) -> bool {
    cluster.services.get(key).is_some_and(|service| service.spec.flaw.is_none())
}

fn holds_pod(slice: &MultiNetworkEndpointSlice, uid: &str) -> bool {
    let targets = slice.spec.endpoints.iter().filter_map(|endpoint| endpoint.target_ref.as_ref());
    targets.filter_map(|target| target.uid.as_deref()).any(|target| target == uid)
}

/// Returns the slices of valid services for which `is_so` is true.
fn holding(cluster: &Cluster, is_so: impl Fn(&MultiNetworkEndpointSlice) -> bool) -> BTreeSet<ObjectKey> {
    let services = cluster
        .services
        .iter()
        .filter(|(_, service)| service.spec.flaw.is_none() && service.spec.selector.is_some());
    let slices = services.flat_map(|(key, _)| slices_of(cluster, key));
    slices.filter(|slice| is_so(slice)).map(super::cluster::key_of).collect()
}

/// Checks that a newly started controller finds nothing to do.
pub(crate) fn a_new_controller_agrees(simulation: &Simulation) -> Checked {
    let mut cluster = simulation.cluster.clone();
    let undecided = undecided(simulation);
    forget_watches(&mut cluster);
    let newcomer = Simulation::new(simulation.limit(), simulation.caps, cluster);
    for service in newcomer.index.all_services().iter().filter(|service| !undecided.contains(service)) {
        check_idle(&newcomer.index, service)?;
    }
    Ok(())
}

fn check_idle(index: &ClusterIndex, service: &ObjectKey) -> Checked {
    let work = index.work(service, false);
    prop_assert!(!work.needs_list);
    prop_assert!(work.slices.is_empty(), "a newcomer writes {:#?} for {}", work.slices, service);
    prop_assert!(work.mirrors.is_empty(), "a newcomer writes {:#?} for {}", work.mirrors, service);
    let status = index.outcome(service, Ok(())).status;
    prop_assert_eq!(status, None, "a newcomer's status of {}", service);
    Ok(())
}

/// Returns services with contested addresses whose slices do not show the first holder, which a new
/// controller cannot find out.
fn undecided(simulation: &Simulation) -> BTreeSet<ObjectKey> {
    let cluster = &simulation.cluster;
    let order = &simulation.told.order;
    let mut services = BTreeSet::new();
    for ((network, address), holders) in order.iter().filter(|(_, holders)| holders.len() > 1) {
        let winners: BTreeSet<&str> = (holders.iter())
            .filter_map(|(key, _)| order.winner(network, *address, &key.namespace))
            .map(|(_, uid)| uid.as_str())
            .collect();
        let shown: BTreeSet<&str> = cluster
            .slices
            .iter()
            .filter(|(key, slice)| shows_network(key, slice, network))
            .flat_map(|(_, slice)| &slice.spec.endpoints)
            .filter(|endpoint| endpoint.address() == Some(Ok(*address)))
            .filter_map(|endpoint| endpoint.target_ref.as_ref()?.uid.as_deref())
            .collect();
        if shown != winners {
            let pods = holders.iter().filter_map(|(key, _)| Some((key, cluster.pods.get(key)?)));
            services.extend(pods.flat_map(|(key, pod)| services_of(cluster.services.iter(), key, pod)));
        }
    }
    services
}

fn shows_network(key: &ObjectKey, slice: &MultiNetworkEndpointSlice, network: &Network) -> bool {
    let shown = &slice.spec.network;
    (shown.kind.as_str(), shown.name.as_str()) == (network.kind, network.name.as_str())
        && shown.namespace(&key.namespace).unwrap_or_default() == network.namespace
}

fn forget_watches(cluster: &mut Cluster) {
    macro_rules! forget {
        ($($field:ident)*) => {
            $(
                cluster.$field.pending.clear();
                cluster.$field.past.clone_from(&cluster.$field.objects);
                cluster.$field.is_broken = true;
            )*
        };
    }
    forget!(services pods claims devices nodes nads classes templates core_services slices mirrors);
}
