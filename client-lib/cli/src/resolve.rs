//! `multinet resolve`: prints the endpoints of a service that DNS knows, once or as they change.

mod change;
mod table;
mod view;

use std::collections::BTreeSet;
use std::process::ExitCode;

use anyhow::ensure;
use clap::ValueEnum;
use futures::StreamExt as _;
use multinet_client::{Change, Endpoint, ResolveError, Resolved, Resolver};

use crate::bench::target::Target;
use crate::common::DnsArgs;
use crate::output::{self, Usage, note, print};
use change::differences;
use table::Table;

/// Flags of `multinet resolve`.
#[derive(clap::Args, Debug)]
#[command(after_help = HELP)]
pub(crate) struct ResolveArgs {
    /// Name of the service, such as infer.vision.svc.multinet, or of one of its networks, such as
    /// rail0._net.infer.vision.svc.multinet
    name: String,

    /// Name of a port of the service, or a number [default: all named ports]
    ///
    /// With a number, only addresses are looked up, as by `dig NAME`, without any other facts.
    port: Option<String>,

    /// How results are written
    #[arg(short, long, value_enum, default_value_t = EndpointFormat::Table)]
    output: EndpointFormat,

    /// Keep watching, and print changes
    ///
    /// In the table, new endpoints are marked with +, gone ones with -, changed ones with ~. A head
    /// without rows is an empty set: there is no endpoint, or no such service, which DNS does not
    /// tell apart.
    #[arg(short, long)]
    watch: bool,

    /// Only addresses on the network with this alias, such as rail0
    #[arg(long, value_name = "ALIAS", env = "MULTINET_NETWORK", help_heading = "Network")]
    network: Option<String>,

    #[command(flatten)]
    dns: DnsArgs,
}

const HELP: &str = "\
One row is one address of an endpoint; what is not known is a dash. --output json prints one object, in which what \
is not known is null:
  {\"name\", \"ttlSeconds\", \"endpoints\": [{\"host\", \"target\", \"port\",
    \"addresses\": [{\"ip\", \"network\", \"interface\", \"mac\", \"rdmaDevices\", \"pci\", \"numa\"}],
    \"node\", \"zone\", \"pod\": {\"namespace\", \"name\", \"uid\"}}]}
and with --watch one object per line and change:
  {\"change\": \"added\" | \"removed\" | \"changed\", \"endpoint\": {…}}
  {\"change\": \"held\", \"error\"}       DNS fails, the last endpoints are kept
  {\"change\": \"recovered\", \"error\"}  DNS answers again
  {\"change\": \"lost\", \"error\"}       there are no endpoints

Examples:
  multinet resolve infer.vision.svc.multinet
  multinet resolve infer.vision.svc.multinet rdma -o json | jq '.endpoints[].addresses'
  multinet resolve --server 127.0.0.1:5353 --watch infer.vision.svc.multinet.cluster.local

Exit status: 0 if there are endpoints; 1 if there are none, or DNS fails; 2 if the command line or resolv.conf cannot \
be used.";

/// Format in which endpoints are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum EndpointFormat {
    /// Aligned columns, for people
    Table,
    /// JSON, for programs
    Json,
}

/// Looks up a service, and prints its endpoints.
pub(crate) async fn run(args: ResolveArgs) -> anyhow::Result<ExitCode> {
    let (name, port) = Target::split(&args.name, args.port.as_deref())?;
    let resolver = args.dns.resolver()?;
    // The library's notation for all named ports.
    let port = port.as_deref().unwrap_or("*");
    let filter = Filter { name: &name, alias: args.network.as_deref() };
    if args.watch {
        return follow(&resolver, &filter, port, args.output).await;
    }
    let resolved = resolver.resolve(&name, port).await;
    let resolved = resolved.map_err(|error| explain(error, &name, port))?;
    let resolved = filter.apply(resolved)?;
    match args.output {
        EndpointFormat::Table => print(&Table::default().text(&resolved.endpoints))?,
        EndpointFormat::Json => print(&view::once(&resolved)?)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints changes of the service's endpoints until the reader of standard output has gone.
async fn follow(
    resolver: &Resolver,
    filter: &Filter<'_>,
    port: &str,
    output: EndpointFormat,
) -> anyhow::Result<ExitCode> {
    let mut watch = resolver.watch(filter.name, port);
    let explain = |error| explain(error, filter.name, port);
    let mut printer = Printer { output, table: Table::default(), last: Vec::new() };
    let reader_gone = output::stdout_closed();
    tokio::pin!(reader_gone);
    loop {
        let change = tokio::select! {
            change = watch.next() => change,
            gone = &mut reader_gone => return Err(gone.into()),
        };
        match change {
            Some(Change::Lost { error }) if error.is_permanent() => return Err(explain(error)),
            Some(Change::Lost { error }) => printer.lost(&explain(error))?,
            Some(Change::Endpoints(resolved)) => match filter.apply(resolved) {
                Ok(resolved) => printer.endpoints(resolved.endpoints)?,
                Err(error) => printer.lost(&error)?,
            },
            Some(Change::Held { error, .. }) => printer.state("held", Some(&explain(error).to_string()))?,
            Some(Change::Recovered) => printer.state("recovered", None)?,
            Some(_) => {}
            // A watch never ends.
            None => return Ok(ExitCode::SUCCESS),
        }
    }
}

/// Printer of changes of a service's endpoints, which remembers the last ones that it has printed.
struct Printer {
    output: EndpointFormat,
    table: Table,
    last: Vec<Endpoint>,
}

impl Printer {
    fn endpoints(&mut self, now: Vec<Endpoint>) -> anyhow::Result<()> {
        let changes = differences(&self.last, &now);
        let text = match self.output {
            EndpointFormat::Table => self.table.changes(&changes),
            EndpointFormat::Json => view::changes(&changes)?,
        };
        drop(changes);
        self.last = now;
        if text.is_empty() { Ok(()) } else { print(&text) }
    }

    /// Prints that there are no endpoints any more, or none yet: an empty set.
    fn lost(&mut self, error: &anyhow::Error) -> anyhow::Result<()> {
        self.endpoints(Vec::new())?;
        if self.output == EndpointFormat::Table {
            print(&self.table.empty())?;
        }
        self.state("lost", Some(&error.to_string()))
    }

    /// Prints what has happened to DNS. In a table, this goes to standard error, as it is no row.
    fn state(&self, change: &str, error: Option<&str>) -> anyhow::Result<()> {
        match (self.output, error) {
            (EndpointFormat::Json, _) => print(&view::state(change, error)?)?,
            (EndpointFormat::Table, Some(error)) if change == "held" => {
                note(&format!("the last endpoints are kept: {error}"));
            }
            (EndpointFormat::Table, Some(error)) => note(error),
            (EndpointFormat::Table, None) => note("DNS answers again"),
        }
        Ok(())
    }
}

/// Filter that keeps a service's addresses on the network `alias`; all of them if it is `None`.
struct Filter<'a> {
    name: &'a str,
    alias: Option<&'a str>,
}

impl Filter<'_> {
    fn apply(&self, mut resolved: Resolved) -> anyhow::Result<Resolved> {
        let (name, Some(alias)) = (self.name, self.alias) else { return Ok(resolved) };
        let addresses = resolved.endpoints.iter().flat_map(|endpoint| &endpoint.addresses);
        let known: BTreeSet<String> = addresses.filter_map(|address| address.network.clone()).collect();
        for endpoint in &mut resolved.endpoints {
            endpoint.addresses.retain(|address| address.network.as_deref() == Some(alias));
        }
        resolved.endpoints.retain(|endpoint| !endpoint.addresses.is_empty());
        ensure!(
            !known.is_empty() || !resolved.endpoints.is_empty(),
            "DNS does not say which networks the addresses of {name} are on: ask for a port that the service has, or for \
             {alias}._net.{name}"
        );
        let known = Vec::from_iter(known).join(", ");
        ensure!(!resolved.endpoints.is_empty(), "{name} has no address on network {alias}, only on {known}");
        Ok(resolved)
    }
}

/// Returns the library's error, unless it is about the port `*`, which the command line does not
/// have.
fn explain(error: ResolveError, name: &str, port: &str) -> anyhow::Error {
    match error {
        ResolveError::BadPort { reason, .. } if port == "*" => Usage(format!("{name}: {reason}")).into(),
        other => other.into(),
    }
}

#[cfg(test)]
mod tests;
