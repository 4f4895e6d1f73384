//! Merges the sketches of several workers.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use hickory_proto::rr::RecordType;
use serde_json::{Value, json};

use super::{Estimate, QueryKey, SketchSnapshot};
use crate::answer::query::Rcode;
use crate::store::name::Presented;

/// The most frequent queries of all workers together.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Top {
    /// Number of all queries that were counted.
    pub total: u64,
    /// Estimates for the most frequent queries, by falling count.
    pub counts: Vec<(QueryKey, Estimate)>,
}

/// Merges sketches. A worker without a counter for a query may have seen it up to `rest` times. The
/// result has `capacity` queries, and beyond that all that may make up more than one in `capacity`.
pub(crate) fn merge(sketches: &[SketchSnapshot], capacity: u16) -> Top {
    let total = sketches.iter().map(|seen| seen.total).sum::<u64>();
    let rest: u64 = sketches.iter().map(|seen| seen.rest).sum();
    // Starts from the bound for a query that has no counter anywhere, then corrects it for the
    // workers that have one.
    let mut sums: BTreeMap<&QueryKey, Estimate> = BTreeMap::new();
    for seen in sketches {
        for (key, count) in &seen.counts {
            let sum = sums.entry(key).or_insert(Estimate { count: rest, error: rest });
            sum.count += count.count - seen.rest;
            sum.error = sum.error + count.error - seen.rest;
        }
    }
    let mut counts: Vec<(QueryKey, Estimate)> =
        sums.into_iter().map(|(key, count)| (key.clone(), count)).collect();
    counts.sort_by_key(|(_, count)| Reverse(count.count));
    let least = total / u64::from(capacity.max(1));
    let often = counts.partition_point(|(_, count)| count.count > least);
    counts.truncate(often.max(capacity.into()));
    Top { total, counts }
}

impl Top {
    /// Returns the list as the JSON of `/debug/top`.
    pub(crate) fn describe(&self) -> Value {
        let names = self.counts.iter().map(|(key, count)| {
            json!({
                "name": Presented(&key.name).to_string(),
                "type": type_name(key.qtype),
                "rcode": rcode_name(key.rcode),
                "count": count.count,
                "error": count.error,
            })
        });
        json!({ "queries": self.total, "names": names.collect::<Vec<_>>() })
    }
}

fn type_name(qtype: u16) -> String {
    match RecordType::from(qtype) {
        RecordType::Unknown(number) => format!("TYPE{number}"),
        known => known.to_string(),
    }
}

fn rcode_name(rcode: u16) -> &'static str {
    Rcode::from_repr(rcode).map_or("", Rcode::name)
}
