//! How NCCL and NVSHMEM are told the row of the GID table: one index for all devices, or a range of
//! addresses from which they choose a row of each.

use std::net::{IpAddr, Ipv6Addr};

use ipnet::IpNet;

use super::{Plan, Request, network_of};
use crate::gid::{DeviceGid, GidEntry, Port};

/// Names of the variables that choose the rows.
pub(super) struct Names {
    pub(super) index: &'static str,
    pub(super) range: &'static str,
    pub(super) family: &'static str,
    pub(super) version: &'static str,
}

/// Choice of the rows for some devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Rows {
    /// No device is under RoCE.
    NotNeeded,
    /// All devices have this row.
    Index(u32),
    /// The devices have different rows, which this range leads to.
    Range(IpNet),
    /// No setting leads to all rows, for this reason.
    Unknown(String),
}

/// Adds the variables, unless there is a reason why the rows may not be those of the devices in
/// use.
///
/// An index counts before a range, a family and a version. If one of these is set to something
/// that does not fit the rows, it is left to choose.
pub(super) fn add(plan: &mut Plan, request: &Request<'_>, names: &Names, differs: Option<String>) {
    let family = if request.has_ipv6_rows() { "AF_INET6" } else { "AF_INET" };
    let is_set = |name: &str, fits: Option<&str>| {
        let value = (request.set)(name).filter(|value| !value.is_empty() && Some(value.as_str()) != fits)?;
        Some(format!("{name} is set, to {value}, and chooses other rows"))
    };
    let differs =
        differs.or_else(|| is_set(names.family, Some(family))).or_else(|| is_set(names.version, Some("2")));
    let of_same_rows = |value: String| differs.clone().map_or(Ok(value), Err);
    if request.has_ipv6_rows() {
        plan.add(request, names.family, of_same_rows(family.to_owned()));
    }
    match rows(request) {
        Rows::NotNeeded => {}
        Rows::Index(row) => {
            let row = is_set(names.range, None).map_or_else(|| Ok(row.to_string()), Err);
            plan.add(request, names.index, row.and_then(of_same_rows));
        }
        Rows::Range(range) => plan.add(request, names.range, of_same_rows(range.to_string())),
        Rows::Unknown(reason) => plan.add(request, names.index, Err(reason)),
    }
}

/// Returns how NCCL, and NVSHMEM, which has the same code, are told the rows.
pub(super) fn rows(request: &Request<'_>) -> Rows {
    let places: Vec<&DeviceGid> = request.roce().into_iter().map(|(_, place)| place).collect();
    let Some(first) = places.first() else { return Rows::NotNeeded };
    if places.iter().all(|place| place.index == first.index) {
        return Rows::Index(first.index);
    }
    if let Some(reason) = request.shared_port() {
        return Rows::Unknown(reason);
    }
    let rows: Vec<String> = places.iter().map(|place| format!("{} {}", place.device, place.index)).collect();
    let differ = format!("the GID rows differ ({})", rows.join(", "));
    let addresses: Vec<IpAddr> = places.iter().map(|place| network_of(place).addr()).collect();
    let Some(range) = smallest_range(&addresses) else {
        return Rows::Unknown(format!("{differ}, and a range has one address family"));
    };
    let wrong = places.iter().find(|place| {
        let port = request.pod.ports.iter().find(|port| port.is_of(place));
        port.is_none_or(|port| choice(port, &range) != place.index)
    });
    match wrong {
        None => Rows::Range(range),
        Some(place) => Rows::Unknown(format!(
            "{differ}, and the smallest range with all addresses, {range}, leads to another row of {}",
            place.device
        )),
    }
}

/// Returns the smallest network that has all of these addresses. `None` for different families, or
/// without an address.
pub(super) fn smallest_range(addresses: &[IpAddr]) -> Option<IpNet> {
    let first = *addresses.first()?;
    let same = |address: &IpAddr| match (first, *address) {
        (IpAddr::V4(one), IpAddr::V4(other)) => Some((one.to_bits() ^ other.to_bits()).leading_zeros()),
        (IpAddr::V6(one), IpAddr::V6(other)) => Some((one.to_bits() ^ other.to_bits()).leading_zeros()),
        _ => None,
    };
    let bits = addresses.iter().map(same).collect::<Option<Vec<u32>>>()?.into_iter().min()?;
    IpNet::new(first, u8::try_from(bits).ok()?).ok().map(|network| network.trunc())
}

/// Returns the row that NCCL 2.21 to 2.30 chooses with `NCCL_IB_ADDR_RANGE`
/// (`ncclIbGetGidIndex` in `transport/net_ib/connect.cc`).
///
/// It begins with row 0, and prefers a later row that is of the wanted family and in the range. It
/// does not come off row 0 if that is of the same family and RoCE version, in or out of the range.
fn choice(port: &Port, range: &IpNet) -> u32 {
    let wants_v6 = range.addr().is_ipv6();
    let row = |index| port.gids.iter().find(|entry| entry.index == index);
    let gid = |index| row(index).map_or(Ipv6Addr::UNSPECIFIED, |entry: &GidEntry| entry.gid);
    let version = |index| match row(index).and_then(|entry| entry.kind.as_deref()) {
        Some("RoCE v2") => Some(2),
        Some(_) => Some(1),
        None => None,
    };
    let is_valid = |gid: Ipv6Addr| !gid.is_unspecified() && !gid.is_unicast_link_local();
    let is_v6 = |gid: Ipv6Addr| gid.to_ipv4_mapped().is_none();
    let last = port.gids.iter().map(|entry| entry.index).max().unwrap_or_default();
    let mut chosen = 0;
    for candidate in 1..=last {
        let (old, new) = (gid(chosen), gid(candidate));
        if is_v6(new) != wants_v6 || !range.contains(&IpAddr::V6(new).to_canonical()) {
            continue;
        }
        let is_newer = version(candidate) == Some(2) && (version(chosen) != Some(2) || !is_valid(old));
        if is_v6(old) != wants_v6 || is_valid(new) && is_newer {
            chosen = candidate;
        }
    }
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gid::LinkLayer;

    #[test]
    fn the_smallest_range_has_all_addresses() {
        let cases: [(&[&str], Option<&str>); 6] = [
            (&["192.168.111.5"], Some("192.168.111.5/32")),
            (&["192.168.111.5", "192.168.112.5"], Some("192.168.96.0/19")),
            (&["10.0.0.1", "192.168.0.1"], Some("0.0.0.0/0")),
            (&["fd00:1::5", "fd00:2::5"], Some("fd00::/30")),
            (&["10.0.0.1", "fd00::1"], None),
            (&[], None),
        ];
        for (addresses, expected) in cases {
            let addresses: Vec<IpAddr> = addresses.iter().map(|text| text.parse().unwrap()).collect();
            let found = smallest_range(&addresses).map(|range| range.to_string());
            assert_eq!(found.as_deref(), expected, "{addresses:?}");
        }
    }

    #[test]
    fn the_row_is_the_one_that_nccl_chooses() {
        let (v1, v2) = ("IB/RoCE v1", "RoCE v2");
        type Table<'a> = &'a [(u32, &'a str, &'a str)];
        let cases: [(&str, Table<'_>, &str, u32); 7] = [
            (
                "of version 2",
                &[(0, "fe80::1", v2), (3, "::ffff:10.0.0.5", v1), (4, "::ffff:10.0.0.5", v2)],
                "10.0.0.5/32",
                4,
            ),
            ("after a hole", &[(0, "fe80::1", v1), (9, "::ffff:10.0.0.5", v2)], "10.0.0.0/24", 9),
            (
                "the first of two in the range",
                &[(0, "fe80::1", v2), (2, "::ffff:10.0.0.9", v2), (4, "::ffff:10.0.0.5", v2)],
                "10.0.0.0/24",
                2,
            ),
            ("none in the range", &[(0, "fe80::1", v2), (2, "::ffff:10.0.1.9", v2)], "10.0.0.0/24", 0),
            (
                "row 0 of the same family stays",
                &[(0, "::ffff:10.9.9.9", v2), (2, "::ffff:10.0.0.5", v2)],
                "10.0.0.0/24",
                0,
            ),
            (
                "of IPv6",
                &[(0, "fe80::1", v2), (1, "::ffff:10.0.0.5", v2), (2, "fd00::5", v1), (3, "fd00::5", v2)],
                "fd00::/64",
                3,
            ),
            ("no table", &[], "10.0.0.0/24", 0),
        ];
        for (title, table, range, expected) in cases {
            let entry = |&(index, gid, kind): &(u32, &str, &str)| GidEntry {
                index,
                gid: gid.parse().unwrap(),
                kind: Some(kind.to_owned()),
                interface: None,
            };
            let port = Port {
                device: "mlx5_2".to_owned(),
                number: 1,
                link: LinkLayer::Ethernet,
                state: Ok(()),
                gids: table.iter().map(entry).collect(),
            };
            assert_eq!(choice(&port, &range.parse().unwrap()), expected, "{title}");
        }
    }
}
