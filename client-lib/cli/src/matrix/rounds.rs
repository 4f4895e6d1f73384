//! Rounds in which every pair of hosts meets once, as in a tournament. Pure.

/// Returns the rounds for so many hosts. The pairs of a round have no host in common, so that no
/// measurement disturbs another one at its ends. There is one round fewer than hosts, or, for an
/// odd number, as many, in each of which another host pauses.
pub(super) fn rounds(hosts: usize) -> Vec<Vec<(usize, usize)>> {
    if hosts < 2 {
        return Vec::new();
    }
    // One place is fixed, and the others turn around it. An odd host out meets the place beyond.
    let places = hosts + hosts % 2;
    let others = places - 1;
    let round = |turn: usize| {
        let at = |place: usize| (turn + place) % others;
        let fixed = std::iter::once((others, at(0)));
        let opposite = (1..places / 2).map(|place| (at(place), at(others - place)));
        fixed.chain(opposite).filter(|(a, b)| *a.max(b) < hosts).collect()
    };
    (0..others).map(round).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_pair_meets_once_and_no_host_twice_in_a_round() {
        for hosts in 0..=33_usize {
            let rounds = rounds(hosts);
            let expected = if hosts < 2 { 0 } else { hosts - 1 + hosts % 2 };
            assert_eq!(rounds.len(), expected, "{hosts}");
            let mut met = BTreeSet::new();
            for round in &rounds {
                assert_eq!(round.len(), hosts / 2, "{hosts}: {round:?}");
                let busy: BTreeSet<usize> = round.iter().flat_map(|(a, b)| [*a, *b]).collect();
                assert_eq!(busy.len(), 2 * round.len(), "{hosts}: {round:?}");
                assert!(busy.iter().all(|host| *host < hosts), "{hosts}: {round:?}");
                met.extend(round.iter().map(|(a, b)| (*a.min(b), *a.max(b))));
            }
            assert_eq!(met.len(), hosts * hosts.saturating_sub(1) / 2, "{hosts}");
        }
    }
}
