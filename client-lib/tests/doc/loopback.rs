// Hidden set-up of examples: a listener on loopback, and a PeerSet with only that endpoint.
async fn loopback() -> Result<(multinet_client::Listener, multinet_client::PeerSet), Box<dyn std::error::Error>> {
    let resolver = multinet_client::Resolver::builder().servers(["127.0.0.1:53".parse()?]).build()?;
    let connector = multinet_client::Connector::builder().resolver(resolver).build()?;
    let listener = multinet_client::Listener::builder().address("127.0.0.1".parse()?).port(0).bind().await?;
    let endpoint = multinet_client::Endpoint::at(listener.local_addresses()[0]);
    let peers = connector.follow("infer", futures::stream::iter([vec![endpoint]]));
    Ok((listener, peers))
}
