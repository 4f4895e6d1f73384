//! Findings about GPUs: whether RDMA devices can register their memory, how far away the devices
//! are, and what the bridges between do.

use std::collections::BTreeMap;

use multinet_client::pci::Distance;

use super::super::facts::{DmaBuf, FailedCall, Machine};
use super::super::pci::{Acs, Function};
use super::super::report::Level::{Note, Ok as Good, Warning};
use super::super::report::{Finding, GPU};
use super::rdma::SAYS_MORE;

/// Adds the findings about GPUs and the devices that this pod uses. A pod without GPU gets notes at
/// most.
pub(super) fn gpu(machine: &Machine, findings: &mut Vec<Finding>) {
    let has_gpu = !machine.gpus.of_pod.is_empty();
    findings.extend(machine.cuda.as_ref().map(cuda));
    for (device, said) in &machine.dma_bufs {
        findings.push(dma_buf(device, said, machine.peermem, has_gpu));
    }
    // Distances need a device.
    if machine.dma_bufs.is_empty() && machine.functions.is_empty() {
        return;
    }
    if machine.gpus.on_node > 0 && !has_gpu {
        let gpus = super::count(machine.gpus.on_node, "NVIDIA GPU");
        let found = format!("this node has {gpus}, but this pod may use none");
        findings.push(GPU.finding(Note, found, "request nvidia.com/gpu, or a claim, if it is to use one"));
    }
    for gpu in &machine.gpus.of_pod {
        findings.extend(distance(gpu, &machine.functions));
    }
    findings.extend(acs(machine));
}

/// Returns the finding about CUDA, without which payloads cannot lie in GPUs.
fn cuda(said: &Result<u32, String>) -> Finding {
    match said {
        Ok(count) => GPU.good(format!("CUDA finds {}", super::count(*count as usize, "GPU"))),
        Err(reason) => {
            GPU.warning("CUDA does not work: payloads cannot lie in this pod's GPUs", reason.clone())
        }
    }
}

/// Returns how a device registers memory of GPUs: as a dma-buf, else by its address.
fn dma_buf(device: &str, said: &Result<DmaBuf, FailedCall>, peermem: Option<&str>, has_gpu: bool) -> Finding {
    let why = match said {
        Ok(DmaBuf::Taken) => {
            return GPU.good(format!("{device}: memory of GPUs can be registered, as dma-buf"));
        }
        Ok(DmaBuf::Refused) => "its driver takes no dma-buf".to_owned(),
        Ok(DmaBuf::NoCall) => "this libibverbs takes no dma-buf".to_owned(),
        Err(FailedCall { what, .. }) => format!("whether it takes dma-bufs is not known ({what})"),
    };
    if let Some(module) = peermem {
        return GPU.good(format!("{device}: memory of GPUs can be registered, by {module}; {why}"));
    }
    let found = format!(
        "{device}: memory of GPUs cannot be registered, it is copied: {why}, and no nvidia-peermem is loaded"
    );
    if !has_gpu {
        return GPU.note(found);
    }
    GPU.warning(
        found,
        match said {
            Ok(DmaBuf::NoCall) => "install rdma-core 34 or newer (libibverbs1) in the image",
            Err(FailedCall { fix, .. }) => fix.unwrap_or(SAYS_MORE),
            _ => "on the node, use a kernel and a driver of the device that take dma-bufs (mlx5: Linux 5.12), with NVIDIA's open kernel \
                  module; or `modprobe nvidia-peermem`, which needs the device's driver from DOCA-OFED",
        },
    )
}

/// Returns the distance of the nearest device to a GPU, and of the others.
fn distance(gpu: &Function, devices: &[(String, Function)]) -> Option<Finding> {
    let mut by_distance: Vec<(Distance, &str)> =
        devices.iter().map(|(name, function)| (gpu.pci.distance(&function.pci), name.as_str())).collect();
    by_distance.sort_unstable();
    let ((nearest, name), others) = by_distance.split_first()?;
    let (level, words) = match nearest {
        Distance::Pix => (Good, "behind the same PCIe switch"),
        Distance::Pxb => (Good, "behind switches of the same PCIe root"),
        Distance::Phb => (Note, "behind the same PCIe host bridge, through the processor"),
        Distance::Node => (Note, "behind another PCIe host bridge of the same NUMA node"),
        Distance::Sys => (Warning, "on another NUMA node"),
    };
    let others: String = others.iter().map(|(distance, name)| format!("; {name}: {distance}")).collect();
    let address = &gpu.pci.path.address;
    let found = format!("GPU {address}: nearest is {name}, {words} ({nearest}){others}");
    Some(match level {
        Good => GPU.good(found),
        _ => GPU.finding(
            level,
            found,
            "have GPU and NIC allocated together: a claim with matchAttribute resource.kubernetes.io/pcieRoot, or kubelet's Topology Manager \
             (single-numa-node); in a virtual machine, this is as far as it shows the real tree",
        ),
    })
}

/// Returns findings about ACS of the PCIe bridges between this pod's GPUs and RDMA devices.
fn acs(machine: &Machine) -> Vec<Finding> {
    let pairs = machine
        .gpus
        .of_pod
        .iter()
        .flat_map(|gpu| machine.functions.iter().map(move |(_, function)| (gpu, function)));
    let bridges: BTreeMap<&str, Acs> = pairs.flat_map(|(gpu, function)| gpu.between(function)).collect();
    let those = |is_wanted: fn(Acs) -> bool| {
        let wanted = bridges.iter().filter(|(_, acs)| is_wanted(**acs)).map(|(address, _)| *address);
        wanted.collect::<Vec<_>>().join(" ")
    };
    let redirect = those(|acs| acs.redirects() && !acs.lets_translated_pass());
    let translated = those(|acs| acs.redirects() && acs.lets_translated_pass());
    let hidden = those(|acs| acs == Acs::Hidden);
    let mut findings = Vec::new();
    if !redirect.is_empty() {
        let found = format!(
            "ACS of PCIe bridges sends packets between GPU and NIC through the processor: {redirect}"
        );
        findings.push(GPU.warning(
            found,
            format!(
                "on the node, as root: `for bridge in {redirect}; do setpci -s $bridge ECAP_ACS+0x6.w=0000; done` until it boots again, or \
                 ACS off in its firmware; in a virtual machine leave ACS on, and use ATS"
            ),
        ));
    }
    if !translated.is_empty() {
        let found = format!(
            "ACS of PCIe bridges lets packets between GPU and NIC go straight only if the NIC translates addresses (ATS): {translated}"
        );
        findings.push(GPU.finding(
            Note,
            found,
            "`lspci -vvv` on the node shows ATSCtl of the NIC: `Enable+` is needed (mlxconfig ATS_ENABLED=1)",
        ));
    }
    if !hidden.is_empty() {
        let found = format!(
            "whether ACS of PCIe bridges sends packets through the processor cannot be seen here: {hidden}"
        );
        findings.push(GPU.finding(
            Note,
            found,
            format!(
                "on the node, as root: `for bridge in {hidden}; do lspci -vvv -s $bridge | grep ACSCtl; done` should show ReqRedir- and \
                 UpstreamFwd-"
            ),
        ));
    } else if findings.is_empty() && !bridges.is_empty() {
        findings.push(GPU.good("ACS of the PCIe bridges between GPU and NIC redirects nothing"));
    }
    findings
}
