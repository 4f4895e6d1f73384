//! Flags of the subcommands that print or set variables for frameworks, and this pod's own view,
//! from which the variables are derived.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, bail};
use futures::StreamExt as _;
use multinet_client::env::{Framework, Plan, Request, Service};
use multinet_client::pci::Distance;
use multinet_client::{Change, Pod, Rail, Resolved, Sources, gpu};
use tokio::time::{Instant, sleep, timeout_at};

use crate::bench::target::Target;
use crate::common::DnsArgs;

/// Time between two looks at this pod's NICs, while they are waited for.
const LOOKS: Duration = Duration::from_millis(200);
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
    #[arg(long, value_name = "FILE", env = "MULTINET_NETWORK_STATUS")]
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

impl OwnViewArgs {
    /// Reads the facts. Waits for a rail and for this pod's entry in DNS, at most until a deadline.
    ///
    /// # Errors
    ///
    /// If the kernel does not tell the facts, or the service's name is wrong.
    pub(crate) async fn view(&self, deadline: Instant) -> anyhow::Result<OwnView> {
        let pod = loop {
            let pod = self.pod().await?;
            if !pod.rails.is_empty() || Instant::now() >= deadline {
                break pod;
            }
            sleep(LOOKS).await;
        };
        let mut view = OwnView { pod, service: None, missing: Vec::new() };
        if let Some(name) = &self.service {
            self.add_service(name, &mut view, deadline).await?;
        }
        Ok(view)
    }

    async fn pod(&self) -> anyhow::Result<Pod> {
        let mut sources = Sources::default();
        sources.network_status.clone_from(&self.network_status);
        let read = tokio::task::spawn_blocking(move || Pod::read(&sources)).await?;
        read.context("cannot read the facts about this pod")
    }

    async fn add_service(&self, name: &str, view: &mut OwnView, deadline: Instant) -> anyhow::Result<()> {
        let (name, port) = Target::split(name, None)?;
        let port = port.as_deref().unwrap_or(ALL_PORTS);
        let resolver = self.dns.resolver()?;
        let resolved = match resolver.resolve(&name, port).await {
            Err(error) if error.is_permanent() => return Err(error.into()),
            first if Instant::now() >= deadline || first.as_ref().is_ok_and(|it| is_there(it, &view.pod)) => {
                first
            }
            first => {
                let mut last = first;
                let mut changes = resolver.watch(&name, port);
                while let Ok(Some(change)) = timeout_at(deadline, changes.next()).await {
                    match change {
                        Change::Endpoints(resolved) => last = Ok(resolved),
                        Change::Lost { error } => last = Err(error),
                        _ => {}
                    }
                    if last.as_ref().is_ok_and(|it| is_there(it, &view.pod)) {
                        break;
                    }
                }
                last
            }
        };
        match resolved {
            Ok(resolved) => view.set_service(&resolved),
            Err(error) => view.missing.push(format!("{error}: what only DNS knows is left out")),
        }
        Ok(())
    }

    /// Returns the variables for the frameworks on the chosen rails.
    ///
    /// # Errors
    ///
    /// If the pod has no such rail or GPU.
    pub(crate) fn plan(&self, view: &OwnView) -> anyhow::Result<Plan> {
        let rails = self.rails(&view.pod)?;
        let set = |name: &str| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned());
        let service = view.service.as_ref();
        Ok(Plan::of(&Request { frameworks: &self.frameworks, rails, pod: &view.pod, service, set: &set }))
    }

    /// Returns the chosen rails of a pod.
    ///
    /// # Errors
    ///
    /// If the pod has no such rail or GPU.
    pub(crate) fn rails<'a>(&self, pod: &'a Pod) -> anyhow::Result<Vec<&'a Rail>> {
        let gpu = self.gpu(pod)?;
        Ok(nearest(on_networks(pod, &self.network)?, gpu))
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
            None => Ok(variable(LOCAL_RANK).and_then(|rank| rank.parse().ok()).and_then(number_of)),
        }
    }
}

/// Returns whether a service has this pod. A pod without rails is in none, and waits for none.
fn is_there(resolved: &Resolved, pod: &Pod) -> bool {
    pod.rails.is_empty() || resolved.own(pod).is_some()
}

/// Returns the rails on networks with these aliases.
fn on_networks<'a>(pod: &'a Pod, wanted: &[String]) -> anyhow::Result<Vec<&'a Rail>> {
    let has = |alias: &String| pod.rails.iter().any(|rail| rail.network.as_ref() == Some(alias));
    let unknown = wanted.iter().find(|alias| !has(alias)).filter(|_| !pod.rails.is_empty());
    if let Some(alias) = unknown {
        let named =
            pod.rails.iter().filter_map(|rail| Some(format!("{} ({})", rail.network.as_ref()?, rail.name())));
        let named: Vec<String> = named.collect();
        match named.is_empty() {
            false => bail!("--network {alias}: this pod has no rail on it, only on {}", named.join(", ")),
            true => {
                let rails: Vec<&str> = pod.rails.iter().map(Rail::name).collect();
                bail!(
                    "--network {alias}: the networks of this pod's rails ({}) have no names that are known here; give --service, \
                     or mount the pod's network-status (--network-status)",
                    rails.join(", ")
                )
            }
        }
    }
    let is_wanted =
        |rail: &&Rail| wanted.is_empty() || rail.network.as_ref().is_some_and(|its| wanted.contains(its));
    Ok(pod.rails.iter().filter(is_wanted).collect())
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
