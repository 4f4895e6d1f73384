//! Follows the endpoints of a service, without connecting to any of them.
//!
//! ```text
//! resolve_watch infer.vision.svc.multinet [PORT]
//! ```

#![allow(clippy::print_stdout, reason = "what it says is for whoever started it")]

use std::env;

use anyhow::{Context as _, Result};
use futures::StreamExt as _;
use multinet_client::{Change, Endpoint, Resolver};

#[tokio::main]
async fn main() -> Result<()> {
    let mut words = env::args().skip(1);
    let service = words.next().context("usage: resolve_watch SERVICE [PORT]")?;
    let port = words.next().unwrap_or_else(|| "rdma".to_owned());
    let mut changes = Resolver::builder().build()?.watch(&service, &port);
    while let Some(change) = changes.next().await {
        match change {
            Change::Endpoints(now) => {
                println!("{} has {} endpoints:", now.name, now.endpoints.len());
                now.endpoints.iter().for_each(say);
            }
            Change::Held { error, .. } => println!("DNS fails, the last endpoints still hold: {error}"),
            Change::Recovered => println!("DNS answers again"),
            // A name that can be no service's will not become one.
            Change::Lost { error } if error.is_permanent() => return Err(error.into()),
            Change::Lost { error } => println!("there are no endpoints: {error}"),
            _ => {}
        }
    }
    Ok(())
}

fn say(endpoint: &Endpoint) {
    let or_none = |text: &Option<String>| text.as_deref().unwrap_or("-").to_owned();
    for address in &endpoint.addresses {
        println!(
            "  {endpoint}: {} on {} (network {}), node {}, zone {}",
            address.ip,
            or_none(&address.interface),
            or_none(&address.network),
            or_none(&endpoint.node),
            or_none(&endpoint.zone),
        );
    }
}
