//! Variables of programs that serve models: NIXL, Mooncake, vLLM and SGLang.

use super::gid_rows::{Rows, rows};
use super::{Plan, Request, ucx};
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
    let devices = request.rdma().map(|devices| {
        let names = devices.iter().map(|place| place.device.as_str());
        names.collect::<Vec<_>>().join(",")
    });
    plan.add(request, "MOONCAKE_DEVICE", devices.clone());
    if devices.is_ok() {
        plan.add(request, "MC_MS_FILTERS", devices);
    }
    gid_index(plan, request);
    if request.is_ipv6_only() {
        plan.add(request, "MC_USE_IPV6", Ok("1".to_owned()));
    }
    let address = request.address().map(|address| address.to_string());
    let own_name = request.service.and_then(|service| service.own_name.clone());
    plan.add(request, "MOONCAKE_LOCAL_HOSTNAME", own_name.map_or_else(|| address.clone(), Ok));
    plan.add(request, "MC_TCP_BIND_ADDRESS", address);
}

/// Adds Mooncake's row of the GID table, which is one for all devices.
fn gid_index(plan: &mut Plan, request: &Request<'_>) {
    match rows(request) {
        Rows::NotNeeded => {}
        Rows::Index(row) => plan.add(request, "MC_GID_INDEX", Ok(row.to_string())),
        Rows::Range(_) => {
            let differ = "Mooncake takes one row for all devices, and theirs differ".to_owned();
            plan.add(request, "MC_GID_INDEX", Err(differ));
        }
        Rows::Unknown(reason) => plan.add(request, "MC_GID_INDEX", Err(reason)),
    }
}

/// Adds vLLM's: its own address, and the RDMA device of each GPU.
///
/// vLLM puts a worker's device in front of `UCX_NET_DEVICES`, which therefore must not have the
/// devices of other GPUs.
pub(super) fn vllm(plan: &mut Plan, request: &Request<'_>) {
    for name in ["VLLM_HOST_IP", "VLLM_NIXL_SIDE_CHANNEL_HOST"] {
        plan.add(request, name, request.address().map(|address| address.to_string()));
    }
    let Some((mapping, port)) = nic_by_gpu(request) else { return };
    let is_free = |name| (request.set)(name).is_none();
    if ["UCX_NET_DEVICES", "VLLM_GPU_NIC_PCIE_MAPPING", "VLLM_NIC_SELECTION_VARS"].into_iter().all(is_free) {
        plan.variables.retain(|variable| variable.name != "UCX_NET_DEVICES");
        ucx::add_with_devices(plan, request, None);
        plan.add(request, "VLLM_GPU_NIC_PCIE_MAPPING", Ok(mapping));
        plan.add(request, "VLLM_NIC_SELECTION_VARS", Ok(format!("UCX_NET_DEVICES:{port}")));
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
    gid_index(plan, request);
    if let Ok(devices) = request.rdma() {
        let names: Vec<&str> = devices.iter().map(|place| place.device.as_str()).collect();
        plan.remark(format!("give SGLang --disaggregation-ib-device {}", names.join(",")));
    }
}
