//! Flags of the subcommands that print or set variables for frameworks, and this pod's own view,
//! from which the variables are derived.

use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::builder::{OsStringValueParser, TypedValueParser as _};
use futures::StreamExt as _;
use multinet_client::env::{Framework, Plan, Request, Service};
use multinet_client::nic::{AddressState, Interface, LinkState, local_interfaces};
use multinet_client::pci::Distance;
use multinet_client::{Change, Pod, Rail, ResolveError, Resolved, Sources, Watch, by_number, gpu};
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::bench::target::Target;
use crate::common::{DnsArgs, SOON};
use crate::hosts::{explain, silent};
use crate::output::{Usage, note};

/// Time between two looks at this pod's NICs, while they are waited for.
pub(crate) const LOOKS: Duration = Duration::from_millis(200);
/// Variable by which torchrun and others tell a process the number of its GPU.
const LOCAL_RANK: &str = "LOCAL_RANK";
/// Port that stands for all named ports of a service.
const ALL_PORTS: &str = "*";

/// Flags that choose frameworks and rails.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct OwnViewArgs {
    /// Frameworks that variables are for: nccl, ucx, gloo, mpi, nixl, mooncake, ray, vllm, sglang,
    /// nvshmem, torchrun
    #[arg(long = "for", value_name = "FRAMEWORK", value_delimiter = ',', default_value = "nccl,ucx,gloo")]
    frameworks: Vec<Framework>,

    /// Only rails on the network with this alias, such as rail0; may be repeated [default: all]
    #[arg(long, value_name = "ALIAS", value_delimiter = ',')]
    network: Vec<String>,

    /// Service of the pods that are to be connected: it tells aliases of networks, this pod's name,
    /// and the peers' addresses
    #[arg(long, value_name = "NAME")]
    service: Option<String>,

    /// Only the rails that are nearest to this GPU, counted from 0 as CUDA does by PCI address
    /// [default: LOCAL_RANK, if that is one; else all rails]
    #[arg(long, value_name = "N")]
    gpu: Option<usize>,

    /// File with the pod's network-status, which has the names of its networks [default:
    /// /etc/podnetinfo/network-status or /etc/podnetinfo/annotations, if they exist]
    #[arg(long, value_name = "FILE", env = "MULTINET_NETWORK_STATUS",
          value_parser = OsStringValueParser::new().map(PathBuf::from))]
    network_status: Option<PathBuf>,

    #[command(flatten)]
    dns: DnsArgs,
}

/// Facts about this pod, and about the service that the command line names.
#[derive(Debug)]
pub(crate) struct OwnView {
    pub(crate) pod: Pod,
    service: Option<Service>,
    /// Reasons why the view is not what the command line asks for, each with its consequence.
    pub(crate) missing: Vec<String>,
}

/// Service in DNS, followed until it has this pod.
struct Followed {
    name: String,
    changes: Watch,
    /// Last answer or failure of DNS; `None` before the first.
    last: Option<Result<Resolved, ResolveError>>,
}

impl OwnViewArgs {
    /// Reads the facts. Waits for the pod's rails, or those of `--network`, and for its entry in
    /// DNS, at most for `wait`. Without a wait, only the first answer of DNS is waited for.
    ///
    /// # Errors
    ///
    /// If the kernel does not tell the facts, or the service's name is wrong.
    pub(crate) async fn view(&self, wait: Duration) -> anyhow::Result<OwnView> {
        let mut followed = self.service.as_deref().map(|name| Followed::new(name, &self.dns)).transpose()?;
        let begin = Instant::now();
        let mut is_noted = false;
        loop {
            // NICs, and the names of networks in files, come while the pod runs already.
            let (pod, is_settled) = self.pod().await?;
            let mut view = OwnView { pod, service: None, missing: Vec::new() };
            if let Some(followed) = &followed {
                view.set_answer(&followed.name, followed.last.as_ref());
            }
            let awaited = self.awaited(&view);
            let is_answered = followed.as_ref().is_none_or(|followed| followed.last.is_some());
            let is_over = begin.elapsed() >= wait && (is_answered || !wait.is_zero());
            if is_over || is_settled && awaited.is_none() {
                return Ok(view);
            }
            if let Some(awaited) = awaited.filter(|_| !is_noted && !wait.is_zero() && begin.elapsed() >= SOON)
            {
                is_noted = true;
                note(&format!("{awaited}, waiting up to {} s", wait.as_secs()));
            }
            let next = Instant::now() + LOOKS;
            let next = if wait.is_zero() { next } else { next.min(begin + wait) };
            match &mut followed {
                Some(followed) => followed.until(next).await?,
                None => sleep_until(next).await,
            }
        }
    }

    /// Returns what the view lacks of all that the command line asks for.
    fn awaited(&self, view: &OwnView) -> Option<String> {
        let has_rails = !view.pod.rails.is_empty();
        let unusable: &[String] = if has_rails { self.unusable(view) } else { &view.pod.unusable };
        if !view.missing.is_empty() || !unusable.is_empty() {
            return Some([unusable, &view.missing].concat().join("; "));
        }
        if has_rails {
            return on_networks(view, &self.network).err().map(|error| error.to_string());
        }
        // A launcher has none, and may need no more than its workers' addresses.
        let plan = self.plan(view).ok()?;
        let left_out = plan.left_out().next().map(|(name, reason)| format!("{name}: {reason}"));
        left_out.or_else(|| view.lacks().filter(|_| !view.has_service()))
    }

    /// Returns the second NICs and addresses that cannot be used, unless the command line names the
    /// networks that it needs.
    pub(crate) fn unusable<'a>(&self, view: &'a OwnView) -> &'a [String] {
        if self.network.is_empty() { &view.pod.unusable } else { &[] }
    }

    /// Returns the facts about this pod, and whether its addresses will stay as they are: the
    /// kernel may still verify some of them.
    async fn pod(&self) -> anyhow::Result<(Pod, bool)> {
        let mut sources = Sources::default();
        // As in a manifest that sets MULTINET_NETWORK_STATUS to nothing.
        sources.network_status = self.network_status.clone().filter(|file| !file.as_os_str().is_empty());
        let read = move || {
            let is_settled = !local_interfaces()?.iter().any(is_verifying);
            io::Result::Ok((Pod::read(&sources)?, is_settled))
        };
        tokio::task::spawn_blocking(read).await?.context("cannot read the facts about this pod")
    }

    /// Returns the variables for the frameworks on the chosen rails.
    ///
    /// # Errors
    ///
    /// If the pod has no such rail or GPU.
    pub(crate) fn plan(&self, view: &OwnView) -> anyhow::Result<Plan> {
        let rails = self.rails(view)?;
        let set = |name: &str| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned());
        let service = view.service.clone().map(|service| Service {
            own_name: service.own_name.as_deref().map(|name| on_network(name, &self.network, &service)),
            ..service
        });
        let service = service.as_ref();
        Ok(Plan::of(&Request { frameworks: &self.frameworks, rails, pod: &view.pod, service, set: &set }))
    }

    /// Returns the chosen rails of a pod.
    ///
    /// # Errors
    ///
    /// If the pod has no such rail or GPU.
    pub(crate) fn rails<'a>(&self, view: &'a OwnView) -> anyhow::Result<Vec<&'a Rail>> {
        let gpu = self.gpu(&view.pod)?;
        let mut rails = on_networks(view, &self.network)?;
        rails.sort_by_cached_key(|rail| place(rail));
        Ok(nearest(rails, gpu))
    }

    /// Returns the number of the chosen GPU among the pod's. `None` for all rails.
    fn gpu(&self, pod: &Pod) -> anyhow::Result<Option<usize>> {
        let variable = |name| std::env::var(name).ok();
        let visible = gpu::visible(&pod.gpus, variable("CUDA_VISIBLE_DEVICES").as_deref());
        let number_of = |number: usize| {
            let chosen = visible.get(number)?;
            pod.gpus.iter().position(|gpu| gpu == *chosen)
        };
        match self.gpu {
            Some(number) => match number_of(number) {
                Some(gpu) => Ok(Some(gpu)),
                None => bail!("--gpu {number}: this process sees {} GPUs, counted from 0", visible.len()),
            },
            None => {
                let rank = variable(LOCAL_RANK).and_then(|rank| rank.parse().ok());
                // A launcher may have left each process its own GPU alone.
                Ok(rank.and_then(|rank| number_of(if visible.len() == 1 { 0 } else { rank })))
            }
        }
    }
}

impl Followed {
    /// Begins to ask DNS.
    ///
    /// # Errors
    ///
    /// If the name is wrong, or no server is known.
    fn new(name: &str, dns: &DnsArgs) -> anyhow::Result<Self> {
        match Target::service(name)? {
            (name, None) => Ok(Self { changes: dns.resolver()?.watch(&name, ALL_PORTS), name, last: None }),
            (name, Some(port)) => {
                Err(Usage(format!("--service {name} takes no port: leave out :{port}")).into())
            }
        }
    }

    /// Takes the next thing that DNS says, if it comes before a time. Asks DNS anew where it has
    /// failed.
    async fn until(&mut self, end: Instant) -> anyhow::Result<()> {
        if self.last.as_ref().is_some_and(Result::is_err) {
            self.changes.ask_soon();
        }
        timeout_at(end, self.take()).await.unwrap_or(Ok(()))
    }

    async fn take(&mut self) -> anyhow::Result<()> {
        match self.changes.next().await {
            Some(Change::Lost { error }) if error.is_permanent() => return Err(error.into()),
            Some(Change::Lost { error }) => self.last = Some(Err(error)),
            Some(Change::Endpoints(resolved)) => self.last = Some(Ok(resolved)),
            // The last endpoints still count.
            _ => {}
        }
        Ok(())
    }
}

/// Returns the name of a host on the one network that is wanted, such as
/// `worker-0.rail1._net.train.vision.svc.multinet`, if the service knows its alias.
fn on_network(name: &str, wanted: &[String], service: &Service) -> String {
    match (wanted, name.split_once('.')) {
        ([alias], Some((host, rest)))
            if service.addresses.iter().any(|(its, _)| its.as_ref() == Some(alias)) =>
        {
            format!("{host}.{alias}._net.{rest}")
        }
        _ => name.to_owned(),
    }
}

/// Returns whether the kernel still verifies an address of a second NIC, which takes it a second.
/// Without a carrier it does not begin.
fn is_verifying(interface: &Interface) -> bool {
    let is_link_local = |ip: IpAddr| matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
    let mut addresses = interface.addresses.iter().filter(|address| !is_link_local(address.ip));
    interface.is_second_nic()
        && interface.link == LinkState::Up
        && addresses.any(|address| address.state == AddressState::Tentative)
}

/// Returns the rails on networks with these aliases.
fn on_networks<'a>(view: &'a OwnView, wanted: &[String]) -> anyhow::Result<Vec<&'a Rail>> {
    let rails = &view.pod.rails;
    let has = |alias: &String| rails.iter().any(|rail| rail.network.as_ref() == Some(alias));
    if let Some(alias) = wanted.iter().find(|alias| !has(alias)).filter(|_| !rails.is_empty()) {
        let named =
            rails.iter().filter_map(|rail| Some(format!("{} ({})", rail.network.as_ref()?, rail.name())));
        let named: Vec<String> = named.collect();
        let known = match named.is_empty() {
            false => format!("this pod has no rail on it, only on {}", named.join(", ")),
            true => {
                let rails: Vec<&str> = rails.iter().map(Rail::name).collect();
                format!(
                    "the networks of this pod's rails ({}) have no names that are known here",
                    rails.join(", ")
                )
            }
        };
        match (view.missing.is_empty(), named.is_empty()) {
            (false, _) => bail!("--network {alias}: {known}; {}", view.missing.join("; ")),
            (true, true) => bail!(
                "--network {alias}: {known}; give --service, or mount the pod's network-status (--network-status)"
            ),
            (true, false) => bail!("--network {alias}: {known}"),
        }
    }
    let is_wanted =
        |rail: &&Rail| wanted.is_empty() || rail.network.as_ref().is_some_and(|its| wanted.contains(its));
    Ok(rails.iter().filter(is_wanted).collect())
}

/// Returns the place of a rail among all: that of its network's alias, so that pods use their rails
/// in the same order whatever their interfaces are called. Rails without an alias are last.
pub(crate) fn place(rail: &Rail) -> impl Ord + use<> {
    (rail.network.is_none(), rail.network.as_deref().map(by_number))
}

/// Returns the rails that are nearest to a GPU; all of them if no distance is known.
fn nearest(mut rails: Vec<&Rail>, gpu: Option<usize>) -> Vec<&Rail> {
    let Some(number) = gpu else { return rails };
    let distance = |rail: &Rail| -> Option<Distance> {
        rail.gpus.iter().find(|near| near.number == number).map(|near| near.distance)
    };
    if let Some(least) = rails.iter().filter_map(|rail| distance(rail)).min() {
        rails.retain(|rail| distance(rail) == Some(least));
    }
    rails
}

impl OwnView {
    /// Takes the last answer or failure of DNS about a service; `None` before the first.
    fn set_answer(&mut self, service: &str, last: Option<&Result<Resolved, ResolveError>>) {
        let failure = match last {
            Some(Ok(resolved)) => return self.set_service(resolved),
            Some(Err(error)) => explain(error.clone()).to_string(),
            None => silent(service),
        };
        self.missing.push(format!("{failure}: what only DNS knows is left out"));
    }

    fn set_service(&mut self, resolved: &Resolved) {
        resolved.name_rails(&mut self.pod);
        let own = resolved.own(&self.pod);
        if own.is_none() && !self.pod.rails.is_empty() {
            let addresses: Vec<String> =
                self.pod.rails.iter().filter_map(Rail::address).map(|ip| ip.to_string()).collect();
            self.missing.push(format!(
                "{} has {} endpoints, and none with an address of this pod ({}): aliases of networks and this pod's name \
                 there are not known; is the pod ready, and selected by the service?",
                resolved.name,
                resolved.endpoints.len(),
                addresses.join(", ")
            ));
        }
        let addresses = resolved.endpoints.iter().flat_map(|endpoint| &endpoint.addresses);
        let addresses: Vec<(Option<String>, IpAddr)> =
            addresses.map(|address| (address.network.clone(), address.ip)).collect();
        let own_name = own.map(|own| own.target.trim_end_matches('.').to_owned());
        self.service = Some(Service { own_name, addresses });
    }

    /// Returns whether DNS has told the addresses of a service.
    pub(crate) fn has_service(&self) -> bool {
        self.service.is_some()
    }

    /// Returns why the view lacks something that variables need; none if it lacks nothing.
    pub(crate) fn lacks(&self) -> Option<String> {
        let none = self.pod.rails.is_empty().then(|| match self.pod.unusable.is_empty() {
            true => "this pod has no second NIC with an address".to_owned(),
            false => format!("this pod has no usable second NIC: {}", self.pod.unusable.join(", ")),
        });
        let all: Vec<String> = none.into_iter().chain(self.missing.iter().cloned()).collect();
        if all.is_empty() { None } else { Some(all.join("; ")) }
    }
}

#[cfg(test)]
mod tests;
