//! The PCI tree, as far as it decides how a GPU and a NIC reach each other: where a function is, how far two are apart, and which bridges between
//! them send their packets the long way. Pure.

/// Where a function is in the tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// The host bridge that it is below, such as `/sys/devices/pci0000:00`.
    pub(super) root: String,
    /// The addresses of the bridges on the way down, the root port first.
    pub(super) bridges: Vec<String>,
    /// Its own address, such as `0000:19:00.0`.
    pub(super) address: String,
}

/// A GPU or a NIC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Function {
    pub(super) place: Place,
    /// One for each of the place's bridges.
    pub(super) acs: Vec<Acs>,
    /// The NUMA node, if the machine has several.
    pub(super) numa: Option<u32>,
}

/// What a bridge does with packets between two functions below it (PCI Express Base Specification, 6.12, Access Control Services).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Acs {
    /// It has no such choice, and sends them straight on.
    Absent,
    /// Not to be seen: the kernel shows it to CAP_SYS_ADMIN only.
    Hidden,
    /// Its control register.
    Control(u16),
}

/// How far two functions are apart, by the terms of `nvidia-smi topo -m`. The nearer one is the lesser one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Distance {
    /// One switch is between them.
    Pix,
    /// Several switches are between them, and no host bridge.
    Pxb,
    /// A host bridge is between them.
    Phb,
    /// Two host bridges of one NUMA node are between them.
    Node,
    /// What connects NUMA nodes is between them.
    Sys,
}

/// What of the control register sends packets between functions up to the host bridge: request redirect, completion redirect, upstream
/// forwarding and egress control. Those that the kernel's `disable_acs_redir` clears, and upstream forwarding.
const REDIRECTS: u16 = 0x3c;
/// What of it lets packets go straight all the same if their addresses have been translated (ATS).
const DIRECT_TRANSLATED: u16 = 0x40;

/// How much of the configuration space everybody may read, in bytes.
const SHOWN: usize = 64;
/// Where the extended capabilities begin.
const EXTENDED: usize = 0x100;
/// How much there is of the configuration space, in bytes.
pub(super) const CONFIGURATION: usize = 0x1000;
/// The number of the capability.
const ACS: u32 = 0x0d;

impl Place {
    /// From the path of a function in `/sys/devices`. Whatever lies below the function, such as a virtio device, is left away.
    pub(super) fn parse(path: &str) -> Option<Self> {
        let parts: Vec<&str> = path.split('/').collect();
        // A host bridge may itself be below a function of another one (VMD).
        let root = parts.iter().rposition(|part| is_host_bridge(part))?;
        let (above, below) = parts.split_at(root + 1);
        let below = below.iter().take_while(|part| is_address(part));
        let mut bridges: Vec<String> = below.map(|&part| part.to_owned()).collect();
        let address = bridges.pop()?;
        Some(Self { root: above.join("/"), bridges, address })
    }

    /// How many bridges are above both, from the root port on.
    fn shared(&self, other: &Self) -> usize {
        if self.root != other.root {
            return 0;
        }
        self.bridges.iter().zip(&other.bridges).take_while(|(one, two)| one == two).count()
    }
}

/// `pci0000:00`
fn is_host_bridge(part: &str) -> bool {
    let numbers = part.strip_prefix("pci").and_then(|numbers| numbers.split_once(':'));
    numbers.is_some_and(|(domain, bus)| is_hex(domain, 4..=8) && is_hex(bus, 2..=2))
}

/// `0000:19:00.0`
fn is_address(part: &str) -> bool {
    let mut numbers = part.splitn(3, ':');
    let (Some(domain), Some(bus), Some(rest)) = (numbers.next(), numbers.next(), numbers.next()) else {
        return false;
    };
    let rest = rest.split_once('.');
    is_hex(domain, 4..=8)
        && is_hex(bus, 2..=2)
        && rest.is_some_and(|(device, function)| is_hex(device, 2..=2) && is_hex(function, 1..=1))
}

fn is_hex(text: &str, length: std::ops::RangeInclusive<usize>) -> bool {
    length.contains(&text.len()) && text.bytes().all(|digit| digit.is_ascii_hexdigit())
}

impl Function {
    pub(super) fn distance(&self, other: &Self) -> Distance {
        if self.place.root != other.place.root {
            return if self.numa == other.numa { Distance::Node } else { Distance::Sys };
        }
        let shared = self.place.shared(&other.place);
        let most = self.place.bridges.len().max(other.place.bridges.len());
        match (shared, most - shared) {
            (0, _) => Distance::Phb,
            // The port of the switch that it hangs on.
            (_, 0..=1) => Distance::Pix,
            _ => Distance::Pxb,
        }
    }

    /// The bridges between the two and what is known of each, if they are below the same switch. If they are not, packets pass the host
    /// bridge anyway.
    pub(super) fn between<'a>(&'a self, other: &'a Self) -> impl Iterator<Item = (&'a str, Acs)> {
        let shared = self.place.shared(&other.place);
        let below = move |function: &'a Self| {
            let bridges = function.place.bridges.iter().map(String::as_str).zip(function.acs.iter().copied());
            bridges.skip(if shared == 0 { usize::MAX } else { shared })
        };
        below(self).chain(below(other))
    }
}

impl Acs {
    /// From the configuration space, or as much of it as the kernel shows.
    pub(super) fn parse(configuration: &[u8]) -> Self {
        if configuration.len() <= SHOWN {
            return Self::Hidden;
        }
        let mut at = EXTENDED;
        // As many as there is room for, should they be chained in a ring.
        for _ in 0..(CONFIGURATION - EXTENDED) / 8 {
            let header = match configuration.get(at..).and_then(|rest| rest.first_chunk()) {
                Some(header) => u32::from_le_bytes(*header),
                None => return Self::Absent,
            };
            // What is read of a function that does not answer.
            if header == u32::MAX {
                return Self::Hidden;
            }
            if header & 0xffff == ACS {
                let control = configuration.get(at + 6..).and_then(|rest| rest.first_chunk());
                return control.map_or(Self::Hidden, |control| Self::Control(u16::from_le_bytes(*control)));
            }
            at = (header >> 20 & 0xffc) as usize;
            if at < EXTENDED {
                return Self::Absent;
            }
        }
        Self::Absent
    }

    /// Whether packets between functions are sent up to the host bridge.
    pub(super) fn redirects(self) -> bool {
        matches!(self, Self::Control(control) if control & REDIRECTS != 0)
    }

    /// Whether those go straight whose addresses have been translated.
    pub(super) fn lets_translated_pass(self) -> bool {
        matches!(self, Self::Control(control) if control & DIRECT_TRANSLATED != 0)
    }
}

impl std::fmt::Display for Distance {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Pix => "PIX",
            Self::Pxb => "PXB",
            Self::Phb => "PHB",
            Self::Node => "NODE",
            Self::Sys => "SYS",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn function(path: &str, numa: Option<u32>) -> Function {
        let place = Place::parse(path).unwrap();
        let acs = vec![Acs::Absent; place.bridges.len()];
        Function { place, acs, numa }
    }

    /// A configuration space with capabilities of these numbers, the last of which has this control register.
    fn configuration(numbers: &[u16], control: u16) -> Vec<u8> {
        let mut bytes = vec![0; CONFIGURATION];
        for (place, number) in numbers.iter().enumerate() {
            let at = EXTENDED + place * 16;
            let next = if place + 1 < numbers.len() { at + 16 } else { 0 };
            bytes[at..at + 4]
                .copy_from_slice(&(u32::from(*number) | 1 << 16 | (next as u32) << 20).to_le_bytes());
            bytes[at + 6..at + 8].copy_from_slice(&control.to_le_bytes());
        }
        bytes
    }

    #[test]
    fn places_are_read_from_paths() {
        let place = Place::parse("/sys/devices/pci0000:16/0000:16:01.0/0000:17:00.0/virtio3/net").unwrap();
        assert_eq!(place.root, "/sys/devices/pci0000:16");
        assert_eq!((place.bridges, &*place.address), (vec!["0000:16:01.0".to_owned()], "0000:17:00.0"));
        let nested = "/sys/devices/pci0000:5d/0000:5d:00.5/pci10000:00/10000:00:02.0/10000:01:00.0";
        let place = Place::parse(nested).unwrap();
        assert_eq!((place.bridges.len(), &*place.address), (1, "10000:01:00.0"));
        for none in [
            "",
            "/",
            "/sys/devices/virtual/net/eth0",
            "/sys/devices/pci0000:00",
            "/sys/devices/pci0000:00/0000:00:1.0",
            "/sys/devices/pci0000:00/0000:0g:01.0",
            "/sys/devices/pciä:00/0000:00:01.0",
        ] {
            assert_eq!(Place::parse(none), None, "{none}");
        }
    }

    #[test]
    fn distances_are_those_of_nvidia_smi() {
        let at = |path: &str, numa| function(&format!("/sys/devices/{path}"), numa);
        let gpu = at("pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:00.0/0000:03:00.0", Some(0));
        let cases = [
            // Another port of the same switch.
            ("pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:01.0/0000:04:00.0", Some(0), Distance::Pix),
            // Another function on the same bus.
            ("pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:00.0/0000:03:00.1", Some(0), Distance::Pix),
            // A switch below that switch.
            (
                "pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:01.0/0000:04:00.0/0000:05:00.0/0000:06:00.0",
                Some(0),
                Distance::Pxb,
            ),
            ("pci0000:00/0000:00:02.0/0000:10:00.0", Some(0), Distance::Phb),
            ("pci0000:00/0000:00:1f.0", Some(0), Distance::Phb),
            ("pci0000:40/0000:40:01.0/0000:41:00.0", Some(0), Distance::Node),
            ("pci0000:80/0000:80:01.0/0000:81:00.0", Some(1), Distance::Sys),
            ("pci0000:80/0000:80:01.0/0000:81:00.0", None, Distance::Sys),
        ];
        for (path, numa, distance) in cases {
            let nic = at(path, numa);
            assert_eq!((gpu.distance(&nic), nic.distance(&gpu)), (distance, distance), "{path}");
        }
        // A machine that has but one NUMA node says nothing of it.
        let (one, two) = (at("pci0000:00/0000:00:01.0", None), at("pci0000:40/0000:40:01.0", None));
        assert_eq!(one.distance(&two), Distance::Node);
    }

    #[test]
    fn between_two_are_the_bridges_below_the_one_that_they_share() {
        let gpu =
            function("/sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:00.0/0000:03:00.0", None);
        let nic =
            function("/sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:01.0/0000:04:00.0", None);
        let far = function("/sys/devices/pci0000:00/0000:00:02.0/0000:10:00.0", None);
        let between = |nic| gpu.between(nic).map(|(bridge, _)| bridge).collect::<Vec<_>>();
        assert_eq!(between(&nic), ["0000:02:00.0", "0000:02:01.0"]);
        assert!(between(&far).is_empty());
    }

    #[test]
    fn acs_is_read_from_the_configuration_space() {
        assert_eq!(Acs::parse(&configuration(&[0x01, 0x0d], 0x1d)), Acs::Control(0x1d));
        assert_eq!(Acs::parse(&configuration(&[0x01, 0x0b], 0x1d)), Acs::Absent);
        assert_eq!(Acs::parse(&[0; 64]), Acs::Hidden);
        assert_eq!(Acs::parse(&[]), Acs::Hidden);
        assert_eq!(Acs::parse(&[0; 256]), Acs::Absent);
        assert_eq!(Acs::parse(&[0xff; CONFIGURATION]), Acs::Hidden);
        // Capabilities in a ring, and one that is cut off.
        let mut ring = configuration(&[0x01, 0x0b], 0);
        ring[EXTENDED + 16..EXTENDED + 20].copy_from_slice(&(0x0b_u32 | 0x100 << 20).to_le_bytes());
        assert_eq!(Acs::parse(&ring), Acs::Absent);
        assert_eq!(Acs::parse(&configuration(&[0x0d], 0)[..EXTENDED + 5]), Acs::Hidden);
        for length in 0..200 {
            let bytes: Vec<u8> =
                std::iter::repeat_with(|| fastrand::u8(..)).take(EXTENDED + length).collect();
            let _ = Acs::parse(&bytes);
        }
    }

    #[test]
    fn only_some_bits_redirect() {
        let cases = [(0x00, false), (0x01, false), (0x04, true), (0x10, true), (0x1d, true), (0x43, false)];
        for (control, redirects) in cases {
            assert_eq!(Acs::Control(control).redirects(), redirects, "{control:#x}");
        }
        assert!(Acs::Control(0x5d).lets_translated_pass() && !Acs::Control(0x1d).lets_translated_pass());
        assert!(!Acs::Hidden.redirects() && !Acs::Absent.redirects());
    }
}
