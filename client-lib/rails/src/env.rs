//! Variables by which frameworks use this pod's rails. Pure: facts and set variables in, variables
//! out.
//!
//! ```text
//!   Pod ── selected rails ──┐
//!   frameworks ─────────────┼─> Plan ──> name, and a value or the reason why it is left out
//!   variables that are set ─┘
//! ```
//!
//! Variables that are set are never changed, and others that would contradict them are left out. A
//! variable whose value cannot be known is left out as well: a guess would be worse than the
//! framework's own choice.

mod gid_rows;
mod inference;
mod mpi;
mod nccl;
mod nvshmem;
mod sockets;
mod ucx;

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use ipnet::IpNet;

use crate::gid::{DeviceGid, LinkLayer};
use crate::pod::Pod;
use crate::rail::Rail;

/// Framework that variables are for.
///
/// # Examples
///
/// ```
/// use multinet_rails::env::Framework;
///
/// assert_eq!("ucx".parse(), Ok(Framework::Ucx));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Framework {
    /// NCCL.
    Nccl,
    /// UCX.
    Ucx,
    /// gloo, in PyTorch.
    Gloo,
    /// Open MPI.
    Mpi,
    /// NIXL, over UCX.
    Nixl,
    /// Mooncake's TransferEngine and Store.
    Mooncake,
    /// Ray: what its tasks use. Its control plane stays on the default network.
    Ray,
    /// vLLM.
    Vllm,
    /// SGLang.
    Sglang,
    /// NVSHMEM.
    Nvshmem,
    /// Programs under torchrun.
    Torchrun,
}

/// Unknown name of a framework.
///
/// # Examples
///
/// ```
/// use multinet_rails::env::{Framework, UnknownFramework};
///
/// let error: UnknownFramework = "ncl".parse::<Framework>().unwrap_err();
/// assert!(error.to_string().starts_with("\"ncl\" is no framework that variables are known for"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("\"{name}\" is no framework that variables are known for: {}", Framework::ALL.map(Framework::name).join(", "))]
pub struct UnknownFramework {
    name: String,
}

/// Facts about a service that DNS has.
///
/// # Examples
///
/// ```
/// use multinet_rails::env::Service;
///
/// let service = Service {
///     own_name: Some("worker-1.train.vision.svc.multinet".to_owned()),
///     addresses: vec![(Some("rail0".to_owned()), "192.168.111.6".parse()?)],
/// };
/// # Ok::<(), std::net::AddrParseError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Service {
    /// Name of this pod's host in the service; `None` if the service does not have this pod.
    pub own_name: Option<String>,
    /// Addresses of all pods of the service, with the aliases of their networks, if known.
    pub addresses: Vec<(Option<String>, IpAddr)>,
}

/// Request for variables.
///
/// # Examples
///
/// ```no_run
/// use multinet_rails::env::{Framework, Plan, Request};
/// use multinet_rails::{Pod, Sources};
///
/// let pod = Pod::read(&Sources::default())?;
/// let request = Request {
///     frameworks: &[Framework::Nccl],
///     rails: pod.rails.iter().collect(),
///     pod: &pod,
///     service: None,
///     set: &|name| std::env::var(name).ok(),
/// };
/// for variable in Plan::of(&request).variables {
///     println!("{} {:?}", variable.name, variable.setting);
/// }
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct Request<'a> {
    /// Frameworks that variables are for, in the order in which they come.
    pub frameworks: &'a [Framework],
    /// Rails to use, of those of the pod.
    pub rails: Vec<&'a Rail>,
    /// Facts about the pod.
    pub pod: &'a Pod,
    /// Service whose pods the framework connects, if it is given.
    pub service: Option<&'a Service>,
    /// Returns the value of a variable that is set.
    pub set: &'a dyn Fn(&str) -> Option<String>,
}

/// Variables for the request, and remarks about them.
///
/// # Examples
///
/// See [`Request`].
///
/// ```
/// # use multinet_rails::env::{Framework, Plan, Request};
/// let pod = multinet_rails::Pod::default();
/// let request = Request {
///     frameworks: &[Framework::Gloo],
///     rails: Vec::new(),
///     pod: &pod,
///     service: None,
///     set: &|_| None,
/// };
/// assert_eq!(Plan::of(&request).left_out().count(), 1, "there is no NIC");
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Plan {
    /// Variables, each once.
    pub variables: Vec<Variable>,
    /// Remarks for the user, such as a flag that no variable stands for.
    pub remarks: Vec<String>,
    /// Rails whose RDMA devices cannot be used, each with the reason, unless a variable is left out
    /// for it.
    pub lost: Vec<String>,
}

/// Variable of a framework.
///
/// # Examples
///
/// ```
/// use multinet_rails::env::{Setting, Variable};
///
/// let setting = Setting::Value("net1".to_owned());
/// let variable = Variable { name: "GLOO_SOCKET_IFNAME", setting };
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Variable {
    /// Name of the variable, such as `NCCL_IB_HCA`.
    pub name: &'static str,
    /// Value of the variable, or the reason why it is not set.
    pub setting: Setting,
}

/// Value of a variable, or the reason why it is not set.
///
/// # Examples
///
/// ```
/// use multinet_rails::env::Setting;
///
/// let is_new = |setting: &Setting| matches!(setting, Setting::Value(_));
/// assert!(!is_new(&Setting::Kept("eth0".to_owned())));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Setting {
    /// The variable gets this value.
    Value(String),
    /// The variable is set already, to this value, and stays.
    Kept(String),
    /// The variable is left out, for this reason.
    LeftOut(String),
}

impl Framework {
    /// All frameworks.
    ///
    /// ```
    /// use multinet_rails::env::Framework;
    ///
    /// assert_eq!(Framework::ALL.len(), 11);
    /// ```
    pub const ALL: [Self; 11] = [
        Self::Nccl,
        Self::Ucx,
        Self::Gloo,
        Self::Mpi,
        Self::Nixl,
        Self::Mooncake,
        Self::Ray,
        Self::Vllm,
        Self::Sglang,
        Self::Nvshmem,
        Self::Torchrun,
    ];

    /// Returns the name by which users choose the framework.
    ///
    /// ```
    /// use multinet_rails::env::Framework;
    ///
    /// assert_eq!(Framework::Vllm.name(), "vllm");
    /// ```
    pub fn name(self) -> &'static str {
        match self {
            Self::Nccl => "nccl",
            Self::Ucx => "ucx",
            Self::Gloo => "gloo",
            Self::Mpi => "mpi",
            Self::Nixl => "nixl",
            Self::Mooncake => "mooncake",
            Self::Ray => "ray",
            Self::Vllm => "vllm",
            Self::Sglang => "sglang",
            Self::Nvshmem => "nvshmem",
            Self::Torchrun => "torchrun",
        }
    }

    fn uses_rdma(self) -> bool {
        !matches!(self, Self::Gloo | Self::Mpi)
    }

    /// Adds the variables of the framework, and of those that it builds on.
    fn add(self, plan: &mut Plan, request: &Request<'_>) {
        match self {
            Self::Nccl => nccl::add(plan, request),
            Self::Ucx => ucx::add(plan, request),
            Self::Gloo => sockets::gloo(plan, request),
            Self::Mpi => mpi::add(plan, request),
            Self::Nixl => inference::nixl(plan, request),
            Self::Mooncake => inference::mooncake(plan, request),
            Self::Nvshmem => nvshmem::add(plan, request),
            Self::Ray => Self::add_all(&[Self::Nccl, Self::Ucx, Self::Gloo], plan, request),
            Self::Vllm => {
                Self::add_all(&[Self::Nccl, Self::Ucx, Self::Gloo], plan, request);
                inference::vllm(plan, request);
            }
            Self::Sglang => {
                Self::add_all(&[Self::Nccl, Self::Ucx, Self::Gloo], plan, request);
                inference::sglang(plan, request);
            }
            Self::Torchrun => {
                Self::add_all(&[Self::Nccl, Self::Gloo], plan, request);
                sockets::tensorpipe(plan, request);
            }
        }
    }

    fn add_all(frameworks: &[Self], plan: &mut Plan, request: &Request<'_>) {
        frameworks.iter().for_each(|framework| framework.add(plan, request));
    }
}

impl FromStr for Framework {
    type Err = UnknownFramework;

    fn from_str(name: &str) -> Result<Self, UnknownFramework> {
        let known = Self::ALL.into_iter().find(|framework| framework.name() == name);
        known.ok_or_else(|| UnknownFramework { name: name.to_owned() })
    }
}

impl fmt::Display for Framework {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Plan {
    /// Returns the variables for a request.
    ///
    /// ```
    /// # use multinet_rails::env::{Plan, Request};
    /// let pod = multinet_rails::Pod::default();
    /// let rails = Vec::new();
    /// let request =
    ///     Request { frameworks: &[], rails, pod: &pod, service: None, set: &|_| None };
    /// assert_eq!(Plan::of(&request), Plan::default());
    /// ```
    pub fn of(request: &Request<'_>) -> Self {
        let mut plan = Self::default();
        Framework::add_all(request.frameworks, &mut plan, request);
        if request.frameworks.iter().any(|framework| framework.uses_rdma()) {
            plan.lost = plan.lost(request);
        }
        plan
    }

    /// Returns the variables that get a value.
    ///
    /// ```
    /// use multinet_rails::env::Plan;
    ///
    /// assert_eq!(Plan::default().values().count(), 0);
    /// ```
    pub fn values(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.variables.iter().filter_map(|variable| match &variable.setting {
            Setting::Value(value) => Some((variable.name, value.as_str())),
            _ => None,
        })
    }

    /// Returns the variables that are left out, with the reasons.
    ///
    /// ```
    /// use multinet_rails::env::Plan;
    ///
    /// assert_eq!(Plan::default().left_out().count(), 0);
    /// ```
    pub fn left_out(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.variables.iter().filter_map(|variable| match &variable.setting {
            Setting::LeftOut(reason) => Some((variable.name, reason.as_str())),
            _ => None,
        })
    }

    /// Adds a variable, unless it is there already. If it is set, it stays as it is.
    fn add(&mut self, request: &Request<'_>, name: &'static str, value: Result<String, String>) {
        if self.variables.iter().any(|variable| variable.name == name) {
            return;
        }
        let setting = match ((request.set)(name), value) {
            (Some(set), _) => Setting::Kept(set),
            (None, Ok(value)) => Setting::Value(value),
            (None, Err(reason)) => Setting::LeftOut(reason),
        };
        self.variables.push(Variable { name, setting });
    }

    /// Returns the rails that lack their RDMA devices, but those that a variable is left out for.
    fn lost(&self, request: &Request<'_>) -> Vec<String> {
        let is_told = |rail: &&&Rail| {
            let reason = rail.rdma.as_ref().err().map(ToString::to_string).unwrap_or_default();
            self.left_out().any(|(_, why)| why.contains(&reason))
        };
        request.rails.iter().filter(|rail| !is_told(rail)).filter_map(|rail| rail.lost()).collect()
    }

    fn remark(&mut self, remark: String) {
        if !self.remarks.contains(&remark) {
            self.remarks.push(remark);
        }
    }
}

impl<'a> Request<'a> {
    /// Returns the reason why there are no rails, if there are none.
    fn none(&self) -> String {
        match self.pod.unusable.is_empty() {
            true => "this pod has no second NIC with an address".to_owned(),
            false => format!("this pod has no usable second NIC: {}", self.pod.unusable.join(", ")),
        }
    }

    /// Returns the names of the rails' interfaces, with commas between them.
    fn interfaces(&self) -> Result<String, String> {
        let names: Vec<&str> = self.rails.iter().filter_map(|rail| rail.interface.as_deref()).collect();
        if names.is_empty() { Err(self.none()) } else { Ok(names.join(",")) }
    }

    /// Returns the address of the first rail that has one.
    fn address(&self) -> Result<IpAddr, String> {
        self.rails.iter().find_map(|rail| rail.address()).ok_or_else(|| self.none())
    }

    /// Returns the ports of RDMA devices of the rails.
    fn devices(&self) -> impl Iterator<Item = &'a DeviceGid> {
        self.rails.iter().filter_map(|rail| rail.rdma.as_ref().ok())
    }

    /// Returns the ports of RDMA devices as `DEVICE:PORT`, with commas between them, or the reason
    /// why there are none.
    fn device_ports(&self) -> Result<String, String> {
        self.rdma().map(|devices| {
            let ports = devices.iter().map(|place| format!("{}:{}", place.device, place.port));
            ports.collect::<Vec<_>>().join(",")
        })
    }

    /// Returns the RDMA devices of the rails, each port once, or the reason why there are none.
    fn rdma(&self) -> Result<Vec<&'a DeviceGid>, String> {
        let mut devices: Vec<&DeviceGid> = Vec::new();
        for place in self.devices() {
            if !devices.iter().any(|known| (&known.device, known.port) == (&place.device, place.port)) {
                devices.push(place);
            }
        }
        if !devices.is_empty() {
            return Ok(devices);
        }
        let reasons = self
            .rails
            .iter()
            .filter_map(|rail| Some(format!("{}: {}", rail.name(), rail.rdma.as_ref().err()?)));
        let reasons = reasons.collect::<Vec<_>>().join("; ");
        Err(if reasons.is_empty() { self.none() } else { reasons })
    }

    /// Returns that some rails are under RoCE and others under InfiniBand, with one of each, if it
    /// is so.
    fn two_kinds(&self) -> Option<String> {
        let of = |link| self.devices().find(|place| place.link == link);
        let (roce, infiniband) = (of(LinkLayer::Ethernet)?, of(LinkLayer::InfiniBand)?);
        Some(format!(
            "{} port {} is under RoCE, and {} port {} under InfiniBand",
            roce.device, roce.port, infiniband.device, infiniband.port
        ))
    }

    /// Returns the rails under RoCE, each with its device. GIDs of InfiniBand need not be chosen.
    fn roce(&self) -> Vec<(&'a Rail, &'a DeviceGid)> {
        let of = |rail: &&'a Rail| Some((*rail, rail.rdma.as_ref().ok()?));
        let all = self.rails.iter().filter_map(of);
        all.filter(|(_, place)| place.link == LinkLayer::Ethernet).collect()
    }

    /// Returns the reason not to set variables that depend on another one, if that is set to
    /// something else than it would get.
    fn differs(&self, name: &str, ours: &Result<String, String>) -> Option<String> {
        let set = (self.set)(name)?;
        (ours.as_ref().ok() != Some(&set))
            .then(|| format!("{name} is set, to {set}, and may mean other devices"))
    }

    /// Returns whether every GID to be chosen contains an IPv6 address.
    fn has_ipv6_rows(&self) -> bool {
        let rows = self.roce();
        !rows.is_empty() && rows.iter().all(|(_, place)| network_of(place).addr().is_ipv6())
    }

    /// Returns the reason why no setting leads to all rows, if two rails share a port, of which a
    /// framework uses one row.
    fn shared_port(&self) -> Option<String> {
        let rows = self.roce();
        let other = |(at, (rail, place)): (usize, &(&Rail, &DeviceGid))| {
            let is_same = |(_, its): &&(&Rail, &DeviceGid)| {
                (&its.device, its.port) == (&place.device, place.port) && its.index != place.index
            };
            let (before, _) = rows[..at].iter().find(is_same)?;
            Some(format!(
                "{} and {} share {} port {}, of which one GID row is used: choose one of them (--network)",
                before.name(),
                rail.name(),
                place.device,
                place.port
            ))
        };
        rows.iter().enumerate().find_map(other)
    }

    /// Returns whether every address that sockets would use is IPv6.
    fn is_ipv6_only(&self) -> bool {
        let mut addresses = self.rails.iter().filter_map(|rail| rail.address()).peekable();
        addresses.peek().is_some() && addresses.all(|address| address.is_ipv6())
    }
}

/// Returns the address that a GID of RoCE contains, as a network of one address.
fn network_of(place: &DeviceGid) -> IpNet {
    IpNet::from(IpAddr::from(place.gid).to_canonical())
}
