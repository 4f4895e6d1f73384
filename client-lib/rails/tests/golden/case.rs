//! Descriptions of pods, and the files that the kernel and Kubernetes have for them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::{IpAddr, Ipv6Addr};
use std::os::unix::fs::symlink;
use std::path::Path;

use multinet_rails::env::Service;
use multinet_rails::gid::gid_of;
use multinet_rails::nic::{Address, AddressState, Interface, LinkState};

/// Pod that a file describes.
#[derive(Default)]
pub(crate) struct Case {
    pub(crate) interfaces: Vec<Interface>,
    pub(crate) set: BTreeMap<String, String>,
    pub(crate) used: BTreeSet<String>,
    pub(crate) service: Option<Service>,
    /// Files of the container, by path, and links.
    files: BTreeMap<String, String>,
    links: BTreeMap<String, String>,
}

impl Case {
    pub(crate) fn parse(text: &str) -> Self {
        let mut case = Self::default();
        let mut table = String::new();
        for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let words: Vec<&str> = line.split_whitespace().collect();
            match words[0] {
                "interface" => case.interface(&words[1..]),
                "port" => table = case.port(&words[1..]),
                "row" => case.row(&table, &words[1..]),
                "gpu" => case.gpu(&words[1..]),
                "file" => {
                    let (path, text) = line["file ".len()..].split_once(' ').unwrap();
                    case.file(path, text);
                }
                "set" => {
                    let (name, value) = words[1].split_once('=').unwrap();
                    case.set.insert(name.to_owned(), value.to_owned());
                }
                "use" => drop(case.used.insert(words[1].to_owned())),
                "service" => {
                    let own_name = Some(words[1].to_owned()).filter(|name| name != "-");
                    case.service = Some(Service { own_name, addresses: Vec::new() });
                }
                "peer" => {
                    let alias = Some(words[1].to_owned()).filter(|alias| alias != "-");
                    case.service.as_mut().unwrap().addresses.push((alias, words[2].parse().unwrap()));
                }
                other => panic!("{other}"),
            }
        }
        case
    }

    fn interface(&mut self, words: &[&str]) {
        let mut interface = Interface::new(words[0], u32::try_from(self.interfaces.len()).unwrap() + 1);
        for word in &words[1..] {
            match word.split_once('=') {
                Some(("mtu", mtu)) => interface.mtu = Some(mtu.parse().unwrap()),
                Some(("kind", kind)) => interface.kind = Some(kind.to_owned()),
                Some(("mac", mac)) => self.file(&format!("sys/class/net/{}/address", words[0]), mac),
                Some(("at", path)) => self.device(&format!("sys/class/net/{}", words[0]), path),
                _ => match *word {
                    "down" => interface.link = LinkState::Down,
                    "no-carrier" => interface.link = LinkState::NoCarrier,
                    "tentative" => interface.addresses.last_mut().unwrap().state = AddressState::Tentative,
                    address => interface.addresses.push(Address::new(address.parse().unwrap())),
                },
            }
        }
        self.interfaces.push(interface);
    }

    /// Adds a port, and returns the folder of its table.
    fn port(&mut self, words: &[&str]) -> String {
        let [device, number, link, state] = words[..4] else { panic!("{words:?}") };
        let folder = format!("sys/class/infiniband/{device}");
        let port = format!("{folder}/ports/{number}");
        self.file(&format!("{port}/link_layer"), link);
        self.file(&format!("{port}/state"), &format!("4: {state}"));
        let is_unopened = words.contains(&"unopened");
        for word in &words[4..] {
            match word.split_once('=') {
                Some(("at", path)) => self.device(&folder, path),
                Some(("numa", numa)) => {
                    let path = self.links[&format!("{folder}/device")].clone();
                    self.file(&format!("{path}/numa_node"), numa);
                }
                Some(("uverbs", number)) => {
                    self.file(&format!("sys/class/infiniband_verbs/uverbs{number}/ibdev"), device);
                    if !is_unopened {
                        self.file(&format!("dev/infiniband/uverbs{number}"), "");
                    }
                }
                _ => assert_eq!(*word, "unopened"),
            }
        }
        port
    }

    fn row(&mut self, port: &str, words: &[&str]) {
        let [index, gid, kind, interface] = words[..] else { panic!("{words:?}") };
        let gid: Ipv6Addr = gid_of(gid.parse::<IpAddr>().unwrap());
        self.file(&format!("{port}/gids/{index}"), &gid.to_string());
        let kind = if kind == "v2" { "RoCE v2" } else { "IB/RoCE v1" };
        self.file(&format!("{port}/gid_attrs/types/{index}"), kind);
        if interface != "-" {
            self.file(&format!("{port}/gid_attrs/ndevs/{index}"), interface);
        }
    }

    fn gpu(&mut self, words: &[&str]) {
        let [number, path] = words[..2] else { panic!("{words:?}") };
        let address = path.rsplit('/').next().unwrap();
        self.device(&format!("sys/bus/pci/devices/{address}"), path);
        let link = format!("sys/bus/pci/devices/{address}");
        let folder = self.links.remove(&format!("{link}/device")).unwrap();
        self.links.insert(link, folder.clone());
        self.file(&format!("{folder}/vendor"), "0x10de");
        self.file(&format!("{folder}/class"), "0x030200");
        if let Some(numa) = words.get(2).and_then(|word| word.strip_prefix("numa=")) {
            self.file(&format!("{folder}/numa_node"), numa);
        }
        let information = format!("Device Minor: \t {number}");
        self.file(&format!("proc/driver/nvidia/gpus/{address}/information"), &information);
        self.file(&format!("dev/nvidia{number}"), "");
    }

    /// Adds a PCI function, which the link `device` in a folder leads to.
    fn device(&mut self, folder: &str, path: &str) {
        let function = format!("sys/devices/{path}");
        self.file(&format!("{function}/uevent"), "");
        self.links.insert(format!("{folder}/device"), function.clone());
        let address = path.rsplit('/').next().unwrap();
        self.links.insert(format!("sys/bus/pci/devices/{address}"), function);
    }

    fn file(&mut self, path: &str, text: &str) {
        self.files.insert(path.to_owned(), format!("{text}\n"));
    }

    /// Writes the files below a folder.
    pub(crate) fn write(&self, root: &Path) {
        let parent = |path: &Path| fs::create_dir_all(path.parent().unwrap()).unwrap();
        for (path, text) in &self.files {
            let path = root.join(path);
            parent(&path);
            fs::write(path, text).unwrap();
        }
        for (path, target) in &self.links {
            let path = root.join(path);
            parent(&path);
            symlink(root.join(target), path).unwrap();
        }
    }
}
