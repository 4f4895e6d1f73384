//! Which interface is that of the default network, from `/proc/net/route` and `/proc/net/ipv6_route` (proc(5)).
//!
//! A pod may have several default routes: of both families, of several metrics, and on a second NIC, whose network may
//! announce one to whoever listens (IPv6 router advertisements) or have a gateway of its own; Multus' `default-route` takes
//! it from the pod's own interface altogether. That one is `eth0`, the name that container runtimes give to it: where it has
//! any route, it is the default network. Where there is none, the default route of the smallest metric counts, as for the
//! kernel, IPv4's if there is one.

/// The route takes traffic, and is not there to refuse it (`RTF_UP`, `RTF_REJECT`).
const UP: u32 = 0x1;
const REJECT: u32 = 0x200;

/// The name that container runtimes give to the interface of a pod's default network.
const POD_INTERFACE: &str = "eth0";

/// The interface of the default network, if there is a default route.
pub(super) fn default_interface<'a>(v4: &'a str, v6: &'a str) -> Option<&'a str> {
    let (v4, v6) = (routes(v4, parse_v4), routes(v6, parse_v6));
    let best = best(&v4).or_else(|| best(&v6))?;
    let of_the_pod = v4.iter().chain(&v6).find(|route| route.interface == POD_INTERFACE);
    Some(of_the_pod.unwrap_or(best).interface)
}

/// A route beyond the link.
struct Route<'a> {
    interface: &'a str,
    is_default: bool,
    metric: u32,
}

fn routes<'a>(table: &'a str, parse: impl Fn(&'a str) -> Option<Route<'a>>) -> Vec<Route<'a>> {
    table.lines().filter_map(parse).collect()
}

/// The default route with the smallest metric, the first of several.
fn best<'r, 'a>(routes: &'r [Route<'a>]) -> Option<&'r Route<'a>> {
    routes.iter().filter(|route| route.is_default).min_by_key(|route| route.metric)
}

/// `Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT`; addresses and flags in hexadecimal, the
/// metric in decimal numbers. The first line has these names.
fn parse_v4(line: &str) -> Option<Route<'_>> {
    let mut fields = line.split_ascii_whitespace();
    let interface = fields.next()?;
    let destination = hex(fields.next()?)?;
    let flags = hex(fields.nth(1)?)?;
    let metric = fields.nth(2)?.parse::<i32>().ok()?.cast_unsigned(); // the kernel prints it as a signed one
    let mask = hex(fields.next()?)?;
    let is_default = destination == 0 && mask == 0;
    takes_traffic(flags).then_some(Route { interface, is_default, metric })
}

/// Destination, its prefix's length, source, its prefix's length, next hop, metric, references, use, flags, interface;
/// numbers in hexadecimal. The kernel's own route that refuses what has no other is among them, on `lo`, and those that each
/// interface has whose link is up, if it is but a part of a bond or a bridge: to link-local and multicast addresses.
fn parse_v6(line: &str) -> Option<Route<'_>> {
    let mut fields = line.split_ascii_whitespace();
    let destination = fields.next()?;
    let is_any = destination.bytes().all(|digit| digit == b'0');
    let is_of_every_link =
        ["fe8", "fe9", "fea", "feb", "ff"].iter().any(|prefix| destination.starts_with(prefix));
    let prefix = hex(fields.next()?)?;
    let metric = hex(fields.nth(3)?)?;
    let flags = hex(fields.nth(2)?)?;
    let interface = fields.next()?;
    let is_default = is_any && prefix == 0;
    (takes_traffic(flags) && interface != "lo" && !is_of_every_link).then_some(Route {
        interface,
        is_default,
        metric,
    })
}

fn takes_traffic(flags: u32) -> bool {
    flags & UP != 0 && flags & REJECT == 0
}

fn hex(field: &str) -> Option<u32> {
    u32::from_str_radix(field, 16).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const HEADER: &str =
        "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n";
    const ZERO: &str = "00000000000000000000000000000000";

    fn v4(interface: &str, destination: &str, flags: u32, metric: u32, mask: &str) -> String {
        format!("{interface}\t{destination}\t0101F40A\t{flags:04X}\t0\t0\t{metric}\t{mask}\t0\t0\t0   \n")
    }

    fn v6(interface: &str, destination: &str, prefix: u32, flags: u32, metric: u32) -> String {
        format!(
            "{destination} {prefix:02x} {ZERO} 00 fe800000000000000000000000000001 {metric:08x} 00000001 00000000 \
             {flags:08x} {interface:>8}\n"
        )
    }

    fn default4(interface: &str, metric: u32) -> String {
        v4(interface, "00000000", 3, metric, "00000000")
    }

    fn default6(interface: &str, metric: u32) -> String {
        v6(interface, ZERO, 0, 3, metric)
    }

    #[test]
    fn tables() {
        let subnet4 = v4("net1", "0064A8C0", 1, 0, "00FFFFFF");
        // 0.0.0.0/1, as VPNs have it, and a default that refuses.
        let half = v4("tun0", "00000000", 3, 0, "00000080");
        let refused = v4("eth1", "00000000", 0x203, 0, "00000000");
        let kernels = v6("lo", ZERO, 0, 0x0020_0200, u32::MAX);
        let subnet6 = v6("net1", "fd000000000000000000000000000000", 64, 1, 256);
        let (eth0, eth0_v6) = (default4("eth0", 0), default6("eth0", 1024));
        // What Multus leaves to eth0 when another network's NIC gets the default route.
        let pods4 = v4("eth0", "0000F40A", 1, 0, "0000FFFF");
        let pods6 = v6("eth0", "fd00000000000000000000000000000a", 64, 1, 256);
        let link = v6("eth0", "fe800000000000000000000000000000", 64, 1, 256);
        let multicast = v6("eth0", "ff000000000000000000000000000000", 8, 1, 256);
        type Lines<'a> = &'a [&'a str];
        let cases: [(&str, Lines<'_>, Lines<'_>, Option<&str>); 14] = [
            ("nothing", &[], &[], None),
            ("an isolated namespace", &[&subnet4], &[&subnet6, &kernels], None),
            ("a pod", &[&eth0, &subnet4], &[&subnet6, &kernels], Some("eth0")),
            ("an IPv6 pod", &[&subnet4], &[&kernels, &eth0_v6], Some("eth0")),
            ("the smaller metric", &[&default4("net1", 100), &eth0], &[], Some("eth0")),
            ("of equals the first", &[&default4("a", 5), &default4("b", 5)], &[], Some("a")),
            ("half of all is not all", &[&half, &refused, &eth0], &[], Some("eth0")),
            ("an advertised router", &[&eth0], &[&default6("net1", 1024), &kernels], Some("eth0")),
            ("a second network with a gateway", &[&default4("net1", 0)], &[&eth0_v6, &kernels], Some("eth0")),
            ("its default route taken away", &[&default4("net1", 0), &subnet4, &pods4], &[], Some("eth0")),
            ("of IPv6, too", &[], &[&default6("net1", 1024), &pods6], Some("eth0")),
            ("a part of a bond", &[&default4("bond0", 0)], &[&link, &multicast], Some("bond0")),
            ("no default route at all", &[&pods4, &subnet4], &[&pods6], None),
            ("without eth0 IPv4 decides", &[&default4("ens3", 0)], &[&default6("ens4", 1024)], Some("ens3")),
        ];
        for (title, v4, v6, expected) in cases {
            let v4 = [HEADER, &v4.concat()].concat();
            assert_eq!(default_interface(&v4, &v6.concat()), expected, "{title}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_without_a_panic(
            v4 in "(([a-z0-9]{1,5}\t([0-9A-F]{8}|0000000\t?|\\PC{0,3})\t){0,12}\n){0,4}",
            v6 in "([0-9a-f]{32} [0-9a-f]{2} 0{32} 00 0{32} [0-9a-f]{8} 0 0 [0-9a-f]{8} [a-z0-9]{1,4}\n|\\PC{0,20}\n){0,4}",
        ) {
            let _ = default_interface(&v4, &v6);
        }
    }
}
