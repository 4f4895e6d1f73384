//! All facts about this pod, from the kernel and from files.

use std::io;
use std::path::PathBuf;

use ipnet::IpNet;

use crate::gid::{self, Port};
use crate::gpu::{Gpu, Gpus};
use crate::names::{self, Attachment};
use crate::nic::{self, AddressState, Interface, LinkState, LocalAddress};
use crate::order::by_number;
use crate::pci::Function;
use crate::rail::{Machine, Rail};

/// Files that facts are read from.
///
/// # Examples
///
/// ```
/// use multinet_rails::Sources;
///
/// let mut sources = Sources::default();
/// sources.network_status = Some("/podinfo/networks".into());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Sources {
    /// Folder that has `sys`, `proc`, `dev`, `etc` and `var`: `/`.
    pub root: PathBuf,
    /// File with the pod's annotation `k8s.v1.cni.cncf.io/network-status`, as a volume of the
    /// downward API has it: the annotation's value, or a list of annotations that has it. By
    /// default [`DEFAULT_NETWORK_STATUS`](crate::DEFAULT_NETWORK_STATUS), if these exist.
    pub network_status: Option<PathBuf>,
}

/// Facts about this pod.
///
/// # Examples
///
/// ```no_run
/// use multinet_rails::{Pod, Sources};
///
/// let pod = Pod::read(&Sources::default())?;
/// println!("{} rails, {} GPUs", pod.rails.len(), pod.gpus.len());
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Pod {
    /// Rails by interface, `net2` before `net10`, and then ports of InfiniBand without an
    /// interface.
    pub rails: Vec<Rail>,
    /// Addresses of the default network's interface, with their prefix lengths.
    pub default_network: Vec<IpNet>,
    /// GPUs of this pod, by PCI address.
    pub gpus: Vec<Gpu>,
    /// Ports of all RDMA devices that this pod sees, with their GID tables.
    pub ports: Vec<Port>,
    /// Second NICs and addresses that cannot be used now, with the reason, such as `net1 is down`.
    pub unusable: Vec<String>,
    /// Warnings about second NICs, such as two in one subnet.
    pub warnings: Vec<String>,
}

impl Default for Sources {
    fn default() -> Self {
        Self { root: "/".into(), network_status: None }
    }
}

impl Pod {
    /// Reads the facts from the kernel and from files. Blocks for the time of some hundred small
    /// files.
    ///
    /// ```no_run
    /// use multinet_rails::{Pod, Sources};
    ///
    /// for reason in Pod::read(&Sources::default())?.unusable {
    ///     println!("not a rail: {reason}");
    /// }
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The kernel's, if it does not list interfaces or RDMA devices; and that of reading
    /// `network_status`, if it is set.
    pub fn read(sources: &Sources) -> io::Result<Self> {
        let interfaces = nic::local_interfaces()?;
        Self::of(&interfaces, &nic::second_nics()?, sources)
    }

    /// Returns the facts about a pod that has these interfaces and addresses of second NICs.
    ///
    /// ```
    /// use multinet_rails::nic::{Address, Interface, own_addresses};
    /// use multinet_rails::{Pod, Sources};
    ///
    /// let mut net1 = Interface::new("net1", 3);
    /// net1.addresses.push(Address::new("192.168.111.5/24".parse()?));
    /// let mut sources = Sources::default();
    /// sources.root = "/nonexistent".into();
    /// let pod = Pod::of(&[net1.clone()], &own_addresses(&[net1]), &sources)?;
    /// assert_eq!(pod.rails[0].to_string(), "net1 192.168.111.5/24, no RDMA");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read).
    pub fn of(interfaces: &[Interface], second: &[LocalAddress], sources: &Sources) -> io::Result<Self> {
        let root = sources.root.as_path();
        let (ports, gpus) = (gid::ports_in(root)?, Gpus::read(root).of_pod);
        let attachments = names::read(root, sources.network_status.as_deref())?;
        let machine = Machine { root, ports: &ports, gpus: &gpus };
        let rail = |interface: &Interface| {
            let usable = |local: &&LocalAddress| {
                local.interface == interface.name && local.state == AddressState::Usable
            };
            let network = |local: &LocalAddress| IpNet::new(local.ip, local.prefix).ok();
            let addresses: Vec<IpNet> = second.iter().filter(usable).filter_map(network).collect();
            let is_rail = interface.link == LinkState::Up && !addresses.is_empty();
            is_rail.then(|| Rail::of_interface(&machine, &interface.name, addresses, interface.mtu))
        };
        let mut rails: Vec<Rail> = interfaces.iter().filter_map(rail).collect();
        rails.sort_by_cached_key(|rail| by_number(rail.name()));
        let bare = machine.bare_ports(&rails);
        rails.extend(bare.into_iter().map(|place| Rail::of_port(&machine, place)));
        let rails = rails.into_iter().map(|rail| attach(rail, &attachments, &machine)).collect();
        Ok(Self {
            rails,
            default_network: interfaces
                .iter()
                .filter(|its| its.is_default_network)
                .flat_map(usable)
                .collect(),
            unusable: unusable(interfaces),
            warnings: nic::shared_subnets(interfaces).iter().map(shared).collect(),
            gpus,
            ports,
        })
    }
}

/// Adds the facts of the rail's entry in files.
fn attach(mut rail: Rail, attachments: &[Attachment], machine: &Machine<'_>) -> Rail {
    let Some(entry) = attachments.iter().find(|entry| entry.is_of(&rail)) else { return rail };
    rail.network = Some(entry.network.clone());
    match entry.pci.as_deref().and_then(|pci| Function::at_in(machine.root, pci)) {
        Some(function) if rail.pci.is_none() => rail.at_function(machine, function),
        _ => rail,
    }
}

fn usable(interface: &Interface) -> impl Iterator<Item = IpNet> {
    let usable = interface.addresses.iter().filter(|address| address.state == AddressState::Usable);
    usable.filter(|address| !nic::is_link_local(address.ip)).filter_map(nic::Address::network)
}

/// Returns the second NICs and their addresses that cannot be used, with the reason.
fn unusable(interfaces: &[Interface]) -> Vec<String> {
    let of = |interface: &Interface| {
        let name = &interface.name;
        let own: Vec<_> =
            interface.addresses.iter().filter(|address| !nic::is_link_local(address.ip)).collect();
        if interface.link != LinkState::Up {
            return if own.is_empty() { Vec::new() } else { vec![format!("{name} {}", interface.link)] };
        }
        let reason = |address: &&nic::Address| match address.state {
            AddressState::Usable => None,
            AddressState::Tentative => Some(format!("{name} {} is not verified yet", address.ip)),
            AddressState::Duplicate => Some(format!("{name} {}: another host has this address", address.ip)),
        };
        own.iter().filter_map(reason).collect()
    };
    interfaces.iter().filter(|interface| interface.is_second_nic()).flat_map(of).collect()
}

fn shared((subnet, nics): &(IpNet, Vec<(String, std::net::IpAddr)>)) -> String {
    let names = nics.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(" and ");
    format!(
        "{names} are in one subnet, {subnet}: the kernel sends its TCP traffic by one of them, and each answers ARP \
         for all; give each network a subnet of its own"
    )
}
