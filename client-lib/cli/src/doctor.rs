//! `multinet doctor`: finds what is wrong, and says what to do about it.

mod collect;
mod facts;
mod findings;
mod pci;
mod probe;
mod report;

use std::process::ExitCode;

use crate::bench::target::Target;
use crate::common::{DnsArgs, NetworkArgs};
use crate::output::{ReportFormat, print};
use report::Level;

/// Flags of `multinet doctor`.
#[derive(clap::Args, Debug)]
#[command(after_help = HELP)]
pub(crate) struct DoctorArgs {
    /// Service to check, too: its records, and the way to each of its endpoints; or an address,
    /// with or without a port
    name: Option<String>,

    /// Name of a port of the service, or a number [default: all named ports]
    port: Option<String>,

    /// How findings are written
    #[arg(short, long, value_enum, default_value_t = ReportFormat::Text)]
    output: ReportFormat,

    #[command(flatten)]
    dns: DnsArgs,

    #[command(flatten)]
    network: NetworkArgs,
}

const HELP: &str = "\
Checks DNS (search path, each server, the zone), this pod's second NICs, every record of the service, and for each \
of its addresses at the route, a TCP connection and the size of packets that pass; then at RDMA devices (each writes \
to itself once, by the GID of each second NIC's address), at what lies between them and this pod's GPUs, and at the limit of locked memory. Peers see a connection that is \
closed at once, one that asks for a payload which they do not have, and a few datagrams to UDP ports 33434 and 33435, which are closed as a rule.

Each finding is ok, a note, a warning or a problem; warnings and problems have their fix below them. --output json prints one object:
  {\"worst\": \"ok\" | \"note\" | \"warning\" | \"problem\",
   \"findings\": [{\"level\", \"about\", \"message\", \"fix\"}]}
where \"about\" is dns, network, service, endpoint, peer, rdma, gpu or memory, and \"fix\" may be null.

Examples:
  multinet doctor
  multinet doctor infer.vision.svc.multinet rdma
  multinet doctor 192.168.100.7:18515

Exit status: 0 if there is no problem; 1 if there is one; 2 if the command line is wrong.";

/// Collects facts about DNS, the service and this machine, and prints the findings about them.
pub(crate) async fn run(mut args: DoctorArgs) -> anyhow::Result<ExitCode> {
    if let Some(name) = args.name.take() {
        let (name, port) = Target::parse_all_ports(&name, args.port.as_deref())?;
        (args.name, args.port) = (Some(name), port);
    }
    let facts = collect::facts(&args).await;
    let findings = findings::findings(&facts);
    match args.output {
        ReportFormat::Text => print(&report::text(&findings))?,
        ReportFormat::Json => print(&report::json(&findings)?)?,
    }
    Ok(ExitCode::from(u8::from(report::worst(&findings) == Level::Problem)))
}
