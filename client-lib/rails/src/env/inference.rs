//! Variables of programs that serve models: NIXL, Mooncake, vLLM and SGLang.

use std::net::IpAddr;

use ipnet::IpNet;

use super::gid_rows::{Rows, rows};
use super::{Plan, Request, ucx};
use crate::gid::DeviceGid;
use crate::gpu::Gpu;
use crate::rail::Rail;

/// Adds NIXL's, whose data goes by UCX.
pub(super) fn nixl(plan: &mut Plan, request: &Request<'_>) {
    ucx::add(plan, request);
    if request.is_ipv6_only() {
        plan.remark(
            "NIXL's peers exchange metadata by IPv4 literals only, which this pod's rails lack: use \
             NIXL_TCPSTORE_ENDPOINT or NIXL_ETCD_ENDPOINTS"
                .to_owned(),
        );
    }
}

/// Adds Mooncake's. `MC_TCP_BIND_ADDRESS` is the address that other engines are told, which by
/// default is the first one of this pod.
pub(super) fn mooncake(plan: &mut Plan, request: &Request<'_>) {
    let devices = device_names(request);
    let [device, filter] = ["MOONCAKE_DEVICE", "MC_MS_FILTERS"].map(|name| request.differs(name, &devices));
    plan.add(request, "MOONCAKE_DEVICE", filter.clone().map_or_else(|| devices.clone(), Err));
    if devices.is_ok() {
        plan.add(request, "MC_MS_FILTERS", device.clone().map_or(devices, Err));
    }
    let differs = device.or(filter);
    gid_index(plan, request, differs);
    // The one that the name leads to.
    let of_service = request.service.map(|service| service.addresses.as_slice()).unwrap_or_default();
    let mut own = request.rails.iter().flat_map(|rail| &rail.addresses).map(IpNet::addr);
    let named = own.find(|own| of_service.iter().any(|(_, ip)| ip == own));
    let address = named.map_or_else(|| request.address(), Ok);
    if address.as_ref().is_ok_and(IpAddr::is_ipv6) {
        plan.add(request, "MC_USE_IPV6", Ok("1".to_owned()));
    }
    let address = address.map(|address| address.to_string());
    let own_name = request.service.and_then(|service| service.own_name.clone());
    plan.add(request, "MOONCAKE_LOCAL_HOSTNAME", own_name.map_or_else(|| address.clone(), Ok));
    plan.add(request, "MC_TCP_BIND_ADDRESS", address);
}

/// Returns the names of the rails' RDMA devices, or why there are none.
fn device_names(request: &Request<'_>) -> Result<String, String> {
    let names = |places: Vec<&DeviceGid>| {
        places.iter().map(|place| place.device.as_str()).collect::<Vec<_>>().join(",")
    };
    request.rdma().map(names)
}

/// Adds Mooncake's row of the GID table, which is one for all devices, unless there is a reason why
/// it may not be that of the devices in use.
fn gid_index(plan: &mut Plan, request: &Request<'_>, differs: Option<String>) {
    let one_row = |kinds| format!("{kinds}; Mooncake takes one row for all devices");
    let differs = differs.or_else(|| request.two_kinds().map(one_row));
    match rows(request) {
        Rows::NotNeeded => {}
        Rows::Index(row) => {
            plan.add(request, "MC_GID_INDEX", differs.map_or_else(|| Ok(row.to_string()), Err));
        }
        Rows::Range(_) => {
            let differ = "Mooncake takes one row for all devices, and theirs differ".to_owned();
            plan.add(request, "MC_GID_INDEX", Err(differ));
        }
        Rows::Unknown(reason) => plan.add(request, "MC_GID_INDEX", Err(reason)),
    }
}

/// Adds vLLM's own address, and says how vLLM is told the RDMA device of each GPU.
///
/// vLLM puts a worker's device in front of `UCX_NET_DEVICES`, which then must not have those of
/// other GPUs. Versions that do not know the mapping would be left without RDMA, so it is not
/// set.
pub(super) fn vllm(plan: &mut Plan, request: &Request<'_>) {
    for name in ["VLLM_HOST_IP", "VLLM_NIXL_SIDE_CHANNEL_HOST"] {
        plan.add(request, name, request.address().map(|address| address.to_string()));
    }
    if let (Some((mapping, port)), Ok(interfaces)) = (nic_by_gpu(request), request.interfaces()) {
        plan.remark(format!(
            "vLLM from version 0.23 on chooses the NIC of each GPU by VLLM_GPU_NIC_PCIE_MAPPING={mapping} \
             VLLM_NIC_SELECTION_VARS=UCX_NET_DEVICES:{port} UCX_NET_DEVICES={interfaces}"
        ));
    }
}

/// Returns the PCI addresses of each GPU and of its nearest NIC, and the number of the NICs' ports.
/// `None` if there is nothing to choose, or the ports differ.
fn nic_by_gpu(request: &Request<'_>) -> Option<(String, u32)> {
    let devices = request.rdma().ok()?;
    let port = devices.first()?.port;
    if devices.len() < 2 || request.pod.gpus.len() < 2 || devices.iter().any(|place| place.port != port) {
        return None;
    }
    let pair = |(number, gpu): (usize, &Gpu)| {
        let distance =
            |rail: &&&Rail| rail.gpus.iter().find(|near| near.number == number).map(|near| near.distance);
        let with_rdma = request.rails.iter().filter(|rail| rail.rdma.is_ok());
        let nearest = with_rdma.filter(|rail| distance(rail).is_some()).min_by_key(distance)?;
        Some(format!("{}={}", gpu.function.path.address, nearest.pci.as_deref()?))
    };
    let pairs = request.pod.gpus.iter().enumerate().map(pair).collect::<Option<Vec<String>>>()?;
    Some((pairs.join(","), port))
}

/// Adds SGLang's: its own address, and Mooncake's row. Its device is a flag.
pub(super) fn sglang(plan: &mut Plan, request: &Request<'_>) {
    plan.add(request, "SGLANG_HOST_IP", request.address().map(|address| address.to_string()));
    let devices = device_names(request);
    gid_index(plan, request, request.differs("MC_MS_FILTERS", &devices));
    if let Ok(devices) = devices {
        plan.remark(format!("give SGLang --disaggregation-ib-device {devices}"));
    }
}
