//! Variables of Open MPI.

use std::net::IpAddr;

use ipnet::IpNet;

use super::gid_rows::smallest_range;
use super::{Plan, Request};

/// Adds the variables by which Open MPI sends its TCP traffic on second NICs, and by which Open MPI
/// 4 does not shorten the hosts' names to those on the default network.
///
/// The former has ranges of addresses, since the launcher hands its environment to the workers, and
/// often has no second NIC itself. `mpirun` starts its daemons over the default network all the
/// same.
pub(super) fn add(plan: &mut Plan, request: &Request<'_>) {
    plan.add(request, "OMPI_MCA_btl_tcp_if_include", ranges(request));
    plan.add(request, "OMPI_MCA_orte_keep_fqdn_hostnames", Ok("1".to_owned()));
}

/// Returns a range for each network: that of this pod's rail, or the smallest one with all
/// addresses of the service there.
fn ranges(request: &Request<'_>) -> Result<String, String> {
    let v4 = |address: &&IpNet| address.addr().is_ipv4();
    let of_rail = |alias: &Option<String>| {
        let rail = request.rails.iter().find(|rail| rail.network == *alias)?;
        rail.addresses.iter().find(v4)
    };
    let of_service = request.service.map(|service| service.addresses.as_slice()).unwrap_or_default();
    let mut aliases: Vec<Option<String>> = of_service.iter().map(|(alias, _)| alias.clone()).collect();
    aliases.sort_unstable();
    aliases.dedup();
    // Rails limit the networks, where there are any.
    aliases.retain(|alias| request.rails.is_empty() || of_rail(alias).is_some());
    let mut ranges: Vec<IpNet> = Vec::new();
    for alias in &aliases {
        let of_network = of_service.iter().filter(|(its, ip)| its == alias && ip.is_ipv4());
        let mut addresses: Vec<IpAddr> = of_network.map(|(_, ip)| *ip).collect();
        let own = of_rail(alias);
        addresses.extend(own.map(IpNet::addr));
        let subnet = own.map(IpNet::trunc).filter(|own| addresses.iter().all(|ip| own.contains(ip)));
        ranges.extend(subnet.or_else(|| smallest_range(&addresses)));
    }
    if aliases.is_empty() {
        let own = request.rails.iter().filter_map(|rail| rail.addresses.iter().find(v4));
        ranges.extend(own.map(IpNet::trunc));
    }
    ranges.dedup();
    if ranges.is_empty() {
        let is_v6 = !of_service.is_empty() || request.rails.iter().any(|rail| !rail.addresses.is_empty());
        return Err(if is_v6 { "Open MPI takes ranges of IPv4 only".to_owned() } else { request.none() });
    }
    // Other pods have other addresses: a service may not have them yet, or the subnet is routed.
    if let Some(one) = ranges.iter().find(|range| range.prefix_len() == range.max_prefix_len()) {
        return Err(format!(
            "{} is the only address that is known of its network, and the range is for all pods: give --service, once \
             it has them",
            one.addr()
        ));
    }
    let is_shared =
        |range: &IpNet| request.pod.default_network.iter().find(|own| range.contains(&own.addr()));
    match ranges.iter().find_map(|range| Some((range, is_shared(range)?))) {
        Some((range, own)) => Err(format!(
            "the range {range} also holds {}, the default network's address, so that traffic would go there, too",
            own.addr()
        )),
        None => Ok(ranges.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")),
    }
}
