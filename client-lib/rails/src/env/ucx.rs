//! Variables of UCX (`src/uct/ib/base/ib_iface.c` of openucx/ucx).

use std::net::IpAddr;

use ipnet::IpNet;

use super::{Plan, Request, network_of};
use crate::rail::Rail;

/// Adds the variables.
///
/// UCX fails if one device that it sees cannot be used, so that the list has no others. Beside RDMA
/// devices it needs the interfaces, by which it connects.
pub(super) fn add(plan: &mut Plan, request: &Request<'_>) {
    let parts: Vec<String> = request.device_ports().into_iter().chain(request.interfaces()).collect();
    let all = if parts.is_empty() { Err(request.none()) } else { Ok(parts.join(",")) };
    let differs = request.differs("UCX_NET_DEVICES", &all);
    plan.add(request, "UCX_NET_DEVICES", all);
    let of_same_devices = |value: String| differs.clone().map_or(Ok(value), Err);
    match request.roce()[..] {
        [] => {}
        // UCX takes that row of a port under InfiniBand, too, which mostly has row 0 only.
        [(_, place)] if request.two_kinds().is_none() => {
            let row =
                either_or(request, "UCX_IB_ROCE_SUBNETS").map_or_else(|| Ok(place.index.to_string()), Err);
            plan.add(request, "UCX_IB_GID_INDEX", row.and_then(of_same_devices));
        }
        ref rails => {
            // A network of one address leads to the row of that address, whatever rows other pods
            // have in the same table.
            let own: Vec<String> = rails.iter().map(|(_, place)| network_of(place).to_string()).collect();
            let conflict = either_or(request, "UCX_IB_GID_INDEX").or_else(|| request.shared_port());
            let own = conflict.map_or_else(|| Ok(own.join(",")), Err);
            plan.add(request, "UCX_IB_ROCE_SUBNETS", own.and_then(of_same_devices));
            let local = rails.iter().find_map(|(rail, _)| routed(rail, request));
            let local = local.map_or_else(|| Ok("y".to_owned()), Err);
            plan.add(request, "UCX_IB_ROCE_LOCAL_SUBNET", local.and_then(of_same_devices));
        }
    }
}

/// Returns the reason not to set a variable if the other one is set: UCX refuses both.
fn either_or(request: &Request<'_>, other: &str) -> Option<String> {
    let value = (request.set)(other)?;
    Some(format!("{other} is set, to {value}, and UCX refuses both"))
}

/// Returns the reason why peers on a rail are not all in its subnet, if that is known.
fn routed(rail: &Rail, request: &Request<'_>) -> Option<String> {
    let subnet = rail.addresses.first().map(IpNet::trunc)?;
    let name = rail.name();
    let hosts = subnet.max_prefix_len() - subnet.prefix_len();
    if hosts < 2 {
        return Some(format!("the subnet of {name}, {subnet}, has no room for peers"));
    }
    let peers = request.service.map(|service| service.addresses.as_slice()).unwrap_or_default();
    let is_outside = |(alias, ip): &&(Option<String>, IpAddr)| {
        alias.is_some()
            && *alias == rail.network
            && ip.is_ipv4() == subnet.addr().is_ipv4()
            && !subnet.contains(ip)
    };
    let (_, peer) = peers.iter().find(is_outside)?;
    Some(format!("{peer}, a peer on the network of {name}, is outside of its subnet {subnet}"))
}
