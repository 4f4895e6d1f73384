//! Tables of packing cases. An endpoint is a letter; a capital letter is the same endpoint with
//! other details. Slices are written as `0:abc` (of group 0), `0!abc` (with other faults), `?abc`
//! (of no wanted group), `6?abc` (the same with IPv6) and `-?abc` (of no family).

mod properties;

use std::net::{IpAddr, Ipv4Addr};

use super::*;

#[derive(Clone, Copy, Debug, PartialEq)]
struct Letter(char);

impl PackEntry for Letter {
    fn identity(&self) -> Option<Identity<'_>> {
        let address = IpAddr::from(Ipv4Addr::from(u32::from(self.0.to_ascii_lowercase())));
        self.0.is_alphabetic().then_some(Identity { address, hostname: "", namespace: "", name: "" })
    }

    fn is_equivalent(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

fn letters(text: &str) -> Vec<Letter> {
    text.chars().map(Letter).collect()
}

fn text(entries: &[&Letter]) -> String {
    entries.iter().map(|letter| letter.0).collect()
}

/// Packs, and returns the fate of each slice: `=` stays, `0:abc` is written, `-` is deleted. New
/// slices follow a `+`.
fn packed(limit: usize, wanted: &str, found: &str, merges: bool) -> String {
    // `wanted` contains groups such as `abc`, or `6abc` with IPv6; `.` is a group without
    // endpoints.
    let groups: Vec<(IpFamily, Vec<Letter>)> = wanted
        .split_whitespace()
        .map(|group| match group.strip_prefix('6') {
            Some(group) => (IpFamily::Ipv6, letters(group.trim_start_matches('.'))),
            None => (IpFamily::Ipv4, letters(group.trim_start_matches('.'))),
        })
        .collect();
    let slices: Vec<(&str, Vec<Letter>)> = found
        .split_whitespace()
        .map(|slice| slice.split_at(slice.find([':', '!', '?']).unwrap() + 1))
        .map(|(head, entries)| (head, letters(entries)))
        .collect();

    let wanted: Vec<_> = groups
        .iter()
        .map(|(family, entries)| Wanted { family: *family, entries: entries.iter().collect() })
        .collect();
    let found: Vec<_> = slices
        .iter()
        .map(|(head, entries)| {
            let (group, intact, family) = match head.as_bytes() {
                [group, kind] if *kind != b'?' => {
                    let group = usize::from(group - b'0');
                    (Some(group), *kind == b':', Some(groups[group].0))
                }
                b"?" => (None, true, Some(IpFamily::Ipv4)),
                b"6?" => (None, true, Some(IpFamily::Ipv6)),
                b"-?" => (None, true, None),
                _ => panic!("{head}"),
            };
            Found { family, group, intact, entries }
        })
        .collect();

    let packing = pack(&wanted, &found, limit, merges);
    let content = |content: &Content<'_, Letter>| format!("{}:{}", content.group, text(&content.entries));
    let mut words: Vec<String> = packing
        .fates
        .iter()
        .map(|fate| match fate {
            Fate::Keep => "=".to_owned(),
            Fate::Write(written) => content(written),
            Fate::Delete => "-".to_owned(),
        })
        .collect();
    if !packing.create.is_empty() {
        words.push("+".to_owned());
        words.extend(packing.create.iter().map(content));
    }
    words.join(" ")
}

#[track_caller]
fn check(limit: usize, wanted: &str, found: &str, expected: &str) {
    assert_eq!(
        packed(limit, wanted, found, false),
        expected,
        "limit {limit}, wanted {wanted}, found {found}"
    );
}

#[test]
fn slices_are_merged_into_the_fullest_with_room_for_any() {
    let merged = |limit, wanted, found| packed(limit, wanted, found, true);
    assert_eq!(merged(4, "abcde", "0:a 0:b 0:c 0:de"), "= - - 0:decb");
    assert_eq!(merged(4, "abcdefg", "0:abcd 0:ef 0:g"), "= 0:efg -");
    assert_eq!(merged(4, "abc 6def", "0:ab 0:c 1:def"), "0:abc - =", "each group by itself");
    for found in ["0:abc 0:de", "0:abcd 0:e"] {
        assert_eq!(merged(4, "abcde", found), "= =", "{found}: no two fit into one");
    }
    assert_eq!(merged(4, ".", "0:"), "=", "the placeholder of an empty group");
    assert_eq!(merged(4, "abx", "0:a 0:bc"), "- 0:bxa", "with other changes");
}

#[test]
fn correct_slices_stay() {
    check(3, "abcd", "0:cb 0:da", "= =");
    check(3, ".", "", "");
    check(3, "abc 6abc", "0:abc 1:cba", "= =");
}

#[test]
fn a_slice_keeps_what_is_wanted_in_its_place() {
    check(3, "abc", "0:cxa 0:b", "0:ca =");
    check(3, "abc", "0:cBa", "0:cba");
    check(3, "abc", "0!cba", "0:cba");
    check(3, "abc", "0:c.ba", "0:cba");
}

#[test]
fn new_slices_are_filled_in_the_order_of_the_endpoints() {
    check(3, "gfedcba", "", "+ 0:abc 0:def 0:g");
    check(0, "ba", "", "+ 0:a 0:b");
}

#[test]
fn slices_that_must_be_written_are_filled_fullest_first() {
    check(4, "abcdefgh", "0:axx 0:bcx", "0:afgh 0:bcde");
    check(3, "abcd", "0:ax 0:bc", "0:ad =");
    // An emptied slice must be written anyway too. If it is filled, it need not be deleted.
    check(3, "abc", "0:xy 0:ab", "0:c =");
    check(3, "abcd", "0:x 0:aby", "0:d 0:abc");
}

#[test]
fn missing_endpoints_go_into_the_fullest_slice_that_takes_all_of_them() {
    check(4, "abcdef", "0:a 0:bc 0:de", "= 0:bcf =");
    check(4, "abcdefg", "0:a 0:bcd 0:e", "0:afg = =");
    // No slice has room for both. A new slice takes one write; filling two slices would take two.
    check(3, "abcdef", "0:ab 0:cd", "= = + 0:ef");
    // There are more endpoints than fit into a slice: the full slices are new.
    check(3, "abcdefgh", "0:ab 0:cd", "0:abh = + 0:efg");
    check(3, "abcd", "0:a", "= + 0:bcd");
}

#[test]
fn endpoints_are_not_moved_to_save_slices() {
    check(9, "abc", "0:a 0:b 0:c", "= = =");
}

#[test]
fn a_repeated_endpoint_stays_in_the_slice_where_it_costs_least() {
    check(3, "abc", "0:aab 0:c", "0:ab =");
    check(3, "abcd", "0:ab 0:bcd", "0:a =");
    // The first slice must be written anyway.
    check(3, "abcd", "0:abx 0:bc 0:d", "0:a = =");
    check(3, "abcd", "0!bcd 0:ab", "0:cd =");
    check(4, "abc", "0:abc 0:abc", "= -");
    // The outdated copy is removed; the correct one stays.
    check(3, "ab", "0:aB 0:b", "0:a =");
    // The first slice contains an endpoint twice, so it must be written in any case.
    check(9, "abcd", "0:aabc 0:cd", "0:ab =");
}

#[test]
fn a_slice_above_the_limit_is_split() {
    check(2, "abcde", "0:abcde", "0:ab + 0:cd 0:e");
    check(2, "abcde", "0:abcd 0:e", "0:ab = + 0:cd");
    check(3, "abcd", "0:abcd", "0:abc + 0:d");
    // The slice is not split if it is above the limit only because of unwanted endpoints.
    check(3, "abc", "0:abxyzc", "0:abc");
    // An endpoint that does not fit may have another copy that does.
    check(2, "abc", "0:abc 0:cx", "0:ab 0:c");
}

#[test]
fn a_group_without_endpoints_keeps_one_slice_if_it_had_any() {
    check(3, ".", "0:abc 0:de", "0: -");
    check(3, ".", "0:abc 0: 0:", "- = -");
    check(3, ".", "0:abc 0!", "0: -");
    check(3, ".", "0:", "=");
    check(3, ". ab", "1:ab", "=");
}

#[test]
fn an_empty_slice_is_filled_or_deleted() {
    check(3, "ab", "0:", "0:ab");
    check(3, "abc", "0:", "0:abc");
    check(3, "abcd", "0:", "0:abc + 0:d");
    check(3, "ab", "0: 0:ab", "- =");
    check(3, "abc", "0: 0:ab", "0:c =");
    // Each group fills its own empty slice.
    check(3, "a b", "1: 0:", "1:b 0:a");
}

#[test]
fn slices_of_unwanted_groups_are_deleted_or_reused_within_their_family() {
    check(3, "ab", "0:ab ?x", "= -");
    check(3, "ab", "?x", "0:ab");
    check(3, "abcd", "?x ?y ?z", "0:abc 0:d -");
    check(3, "6ab", "?x", "- + 0:ab");
    check(3, "ab", "6?x", "- + 0:ab");
    check(3, "ab", "-?ab", "- + 0:ab");
    // This is cheaper than filling an unchanged slice, since the spare slice must be written or
    // deleted anyway.
    check(3, "abc", "0:ab ?x", "= 0:c");
    // Slices that one group has emptied are used by the next group.
    check(3, "a defg", "0:a 0:x 1:def", "= 1:g =");
    check(3, ". d", "0:a 0:x", "0: 1:d");
    check(3, "b .", "1:a 1:x", "1: 0:b");
}

#[test]
fn a_slice_of_an_unknown_group_is_adopted_by_the_group_of_its_endpoints() {
    check(3, "cba", "?abc", "0:abc");
    check(3, "ab cd", "?cd ?ab", "1:cd 0:ab");
    check(3, "ab cd", "?acd 1:", "1:cd 0:ab");
    check(3, "6ab", "?ab", "- + 0:ab");
    check(3, "abcd", "0:ab ?cd", "= 0:cd");
}

#[test]
fn the_first_of_several_endpoints_with_one_identity_is_packed() {
    check(3, "aAb", "", "+ 0:ab");
    check(3, "Aa", "0:a", "0:A");
    check(3, "a.", "", "+ 0:a");
}
