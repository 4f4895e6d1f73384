//! Follows the endpoints of a service, without connecting to any of them.
//!
//! ```text
//! resolve_watch infer.vision.svc.multinet [PORT]
//! ```

use std::env;
use std::io::{self, Write as _};

use anyhow::{Context as _, Result};
use futures::StreamExt as _;
use multinet_client::{Change, Endpoint, Resolver};

#[tokio::main]
async fn main() -> Result<()> {
    match watch().await {
        // The reader is gone, as with `resolve_watch NAME | head -1`. That is not an error.
        Err(error) if is_broken_pipe(&error) => Ok(()),
        outcome => outcome,
    }
}

async fn watch() -> Result<()> {
    let mut words = env::args().skip(1);
    let service = words.next().context("usage: resolve_watch SERVICE [PORT]")?;
    let port = words.next().unwrap_or_else(|| "rdma".to_owned());
    let mut changes = Resolver::builder().build()?.watch(&service, &port);
    while let Some(change) = changes.next().await {
        match change {
            Change::Endpoints(now) => {
                writeln!(io::stdout(), "{} has {} endpoints:", now.name, now.endpoints.len())?;
                now.endpoints.iter().try_for_each(print)?;
            }
            Change::Held { error, .. } => {
                writeln!(io::stdout(), "DNS fails, the last endpoints still hold: {error}")?;
            }
            Change::Recovered => writeln!(io::stdout(), "DNS answers again")?,
            // A name that cannot be a service's never will be.
            Change::Lost { error } if error.is_permanent() => return Err(error.into()),
            Change::Lost { error } => writeln!(io::stdout(), "there are no endpoints: {error}")?,
            _ => {}
        }
    }
    Ok(())
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

fn print(endpoint: &Endpoint) -> io::Result<()> {
    let or_none = |text: &Option<String>| text.as_deref().unwrap_or("-").to_owned();
    for address in &endpoint.addresses {
        writeln!(
            io::stdout(),
            "  {endpoint}: {} on {} (network {}), node {}, zone {}",
            address.ip,
            or_none(&address.interface),
            or_none(&address.network),
            or_none(&endpoint.node),
            or_none(&endpoint.zone),
        )?;
    }
    Ok(())
}
