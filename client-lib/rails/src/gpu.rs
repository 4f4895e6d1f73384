//! NVIDIA's GPUs, as the kernel and its driver show them.

use std::path::Path;

use crate::pci::Function;
use crate::sys::{names, text};

const NVIDIA: &str = "0x10de";

/// First digits of the PCI class of display and 3D controllers, which GPUs are.
const DISPLAY: &str = "0x03";

/// NVIDIA's GPUs in this node.
///
/// # Examples
///
/// ```no_run
/// use multinet_rails::gpu::Gpus;
///
/// let gpus = Gpus::read("/".as_ref());
/// println!("{} of {} GPUs are this pod's", gpus.of_pod.len(), gpus.on_node);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Gpus {
    /// Number of NVIDIA GPUs of the node, which `/sys` shows to every pod.
    pub on_node: usize,
    /// GPUs whose device files this pod has, by PCI address.
    pub of_pod: Vec<Gpu>,
}

/// GPU of this pod.
///
/// # Examples
///
/// ```no_run
/// use multinet_rails::gpu::Gpus;
///
/// for gpu in Gpus::read("/".as_ref()).of_pod {
///     println!("{} on NUMA node {:?}", gpu.function.path.address, gpu.function.numa);
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Gpu {
    /// Position of the GPU on the PCI bus.
    pub function: Function,
    /// Identifier that the driver gives the GPU, such as `GPU-5d0cd0b5-…`, if it tells it.
    pub uuid: Option<String>,
}

impl Gpus {
    /// Reads the GPUs of the node and of this pod. `root` is the folder that has `sys`, `proc` and
    /// `dev`.
    ///
    /// ```
    /// use multinet_rails::gpu::Gpus;
    ///
    /// assert_eq!(Gpus::read("/nonexistent".as_ref()).on_node, 0);
    /// ```
    pub fn read(root: &Path) -> Self {
        let folder = root.join("sys/bus/pci/devices");
        let is_gpu = |address: &String| {
            let function = folder.join(address);
            text(&function.join("vendor")).is_some_and(|vendor| vendor == NVIDIA)
                && text(&function.join("class")).is_some_and(|class| class.starts_with(DISPLAY))
        };
        let addresses: Vec<String> = names(&folder).into_iter().filter(is_gpu).collect();
        let of_pod = addresses.iter().filter_map(|address| Gpu::of_pod(root, address)).collect();
        Self { on_node: addresses.len(), of_pod }
    }
}

impl Gpu {
    /// Returns the GPU at a PCI address if this pod may use it: it has only the device files of its
    /// own GPUs.
    fn of_pod(root: &Path, address: &str) -> Option<Self> {
        let said = text(&root.join("proc/driver/nvidia/gpus").join(address).join("information"))?;
        let field = |name: &str| said.lines().find_map(|line| Some(line.strip_prefix(name)?.trim()));
        let minor: u32 = field("Device Minor:")?.parse().ok()?;
        if !root.join(format!("dev/nvidia{minor}")).exists() {
            return None;
        }
        let uuid = field("GPU UUID:").map(str::to_owned);
        Some(Self { function: Function::at_in(root, address)?, uuid })
    }
}

/// Returns the GPUs that a process sees which has this value of `CUDA_VISIBLE_DEVICES`, in its
/// order. Entries are numbers in the order of PCI addresses, or beginnings of UUIDs. As in CUDA, an
/// unknown entry ends the list.
///
/// ```
/// use multinet_rails::gpu::visible;
///
/// assert!(visible(&[], Some("0,1")).is_empty());
/// ```
pub fn visible<'a>(gpus: &'a [Gpu], list: Option<&str>) -> Vec<&'a Gpu> {
    let Some(list) = list else { return gpus.iter().collect() };
    let find = |entry: &str| match entry.parse::<usize>() {
        Ok(number) => gpus.get(number),
        Err(_) => gpus
            .iter()
            .find(|gpu| !entry.is_empty() && gpu.uuid.as_deref().is_some_and(|uuid| uuid.starts_with(entry))),
    };
    list.split(',').map_while(|entry| find(entry.trim())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pci::PciPath;

    #[test]
    fn visible_gpus_are_those_of_the_list_in_its_order() {
        let gpus: Vec<Gpu> = (1..=4)
            .map(|bus| Gpu {
                function: Function {
                    path: PciPath::parse(&format!("/sys/devices/pci0000:00/0000:0{bus}:00.0")).unwrap(),
                    numa: None,
                },
                uuid: Some(format!("GPU-{bus}{bus}-aa")),
            })
            .collect();
        let cases: [(Option<&str>, &[usize]); 6] = [
            (None, &[0, 1, 2, 3]),
            (Some("2,0"), &[2, 0]),
            (Some(" 1, 3"), &[1, 3]),
            (Some("GPU-33,GPU-1"), &[2, 0]),
            (Some("0,9,1"), &[0]),
            (Some(""), &[]),
        ];
        for (list, expected) in cases {
            let expected: Vec<&Gpu> = expected.iter().map(|&number| &gpus[number]).collect();
            assert_eq!(visible(&gpus, list), expected, "{list:?}");
        }
    }
}
