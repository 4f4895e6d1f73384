//! PCI bridges between a GPU and a NIC: which of them send packets the long way. Pure.

use multinet_client::pci;

/// PCI function of a GPU or a NIC, and ACS of the bridges above it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Function {
    pub(super) pci: pci::Function,
    /// ACS of each PCI bridge above the function, in the order of `pci.path.bridges`.
    pub(super) acs: Vec<Acs>,
}

/// Access Control Services of a bridge, which decide how packets between two functions below it
/// travel (PCI Express Base Specification, 6.12).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Acs {
    /// The bridge has no ACS, and sends packets straight on.
    Absent,
    /// The bridge's ACS cannot be read: the kernel shows the register to CAP_SYS_ADMIN only.
    Hidden,
    /// Value of the bridge's ACS control register.
    Control(u16),
}

/// Bits of the control register that send packets between functions up to the host bridge: request
/// redirect, completion redirect and egress control, which the kernel's `disable_acs_redir` clears,
/// and upstream forwarding.
const REDIRECTS: u16 = 0x3c;
/// Bit of the control register that lets packets go straight all the same if their addresses have
/// been translated (ATS).
const DIRECT_TRANSLATED: u16 = 0x40;

/// Bytes of the PCI configuration space that every user may read.
const SHOWN: usize = 64;
/// Offset of the extended capabilities in the PCI configuration space.
const EXTENDED: usize = 0x100;
/// Size of the PCI Express configuration space, in bytes.
pub(super) const CONFIGURATION: usize = 0x1000;
/// ID of ACS among the extended capabilities of PCI Express.
const ACS: u32 = 0x0d;

impl Function {
    /// Returns the bridges between two functions, and their ACS, if the functions are below the
    /// same switch. Otherwise packets pass the host bridge anyway.
    pub(super) fn between<'a>(&'a self, other: &'a Self) -> impl Iterator<Item = (&'a str, Acs)> {
        let shared = self.pci.path.shared_bridges(&other.pci.path);
        let below = move |function: &'a Self| {
            let bridges =
                function.pci.path.bridges.iter().map(String::as_str).zip(function.acs.iter().copied());
            bridges.skip(if shared == 0 { usize::MAX } else { shared })
        };
        below(self).chain(below(other))
    }
}

impl Acs {
    /// Parses the configuration space, or as much of it as the kernel shows.
    pub(super) fn parse(configuration: &[u8]) -> Self {
        if configuration.len() <= SHOWN {
            return Self::Hidden;
        }
        let mut at = EXTENDED;
        // A bound for capabilities that form a ring: more than this have no room.
        for _ in 0..(CONFIGURATION - EXTENDED) / 8 {
            let header = match configuration.get(at..).and_then(|rest| rest.first_chunk()) {
                Some(header) => u32::from_le_bytes(*header),
                None => return Self::Absent,
            };
            // A function that does not answer reads as ones.
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

    /// Returns whether the bridge sends packets between functions up to the host bridge.
    pub(super) fn redirects(self) -> bool {
        matches!(self, Self::Control(control) if control & REDIRECTS != 0)
    }

    /// Returns whether the bridge lets packets with translated addresses (ATS) go straight.
    pub(super) fn lets_translated_pass(self) -> bool {
        matches!(self, Self::Control(control) if control & DIRECT_TRANSLATED != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn function(path: &str) -> Function {
        let path = pci::PciPath::parse(path).unwrap();
        let acs = vec![Acs::Absent; path.bridges.len()];
        Function { pci: pci::Function { path, numa: None }, acs }
    }

    /// Returns a configuration space with capabilities of these IDs, the last of which has this
    /// control register.
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
    fn between_two_are_the_bridges_below_the_one_that_they_share() {
        let gpu = function("/sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:00.0/0000:03:00.0");
        let nic = function("/sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:01.0/0000:04:00.0");
        let far = function("/sys/devices/pci0000:00/0000:00:02.0/0000:10:00.0");
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
