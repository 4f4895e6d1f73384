//! Checks that any annotation becomes valid edges only, or problems of one short line, and that
//! what is planned from it can be injected and makes valid services.

use multinet_crds::validate::validate;
use multinet_numaflow::annotation::{DIRECT_EDGES, DIRECT_TO, Declared, NETWORKS, NUMA_NETWORK_EDGES};
use multinet_numaflow::inject::changes;
use multinet_numaflow::objects::{PLAN, Pipeline};
use multinet_numaflow::plan::{Plan, Settings};
use multinet_numaflow::service::service;
use serde_json::json;

/// Longest problem, in bytes, which fits into an event.
const LONGEST: usize = 1024;

/// Parses `bytes` as each of the annotations, and checks the result.
pub(crate) fn check(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes).into_owned();
    let settings = Settings {
        vertex_zone: "vertexdomain.local".to_owned(),
        zone: "multinet.cluster.local".to_owned(),
        ipc_lock: true,
    };
    for key in [DIRECT_EDGES, NUMA_NETWORK_EDGES, NETWORKS, DIRECT_TO] {
        let container = json!({"container": {"image": "a"}});
        let annotations = json!({ key: text });
        let of_vertex = if [NETWORKS, DIRECT_TO].contains(&key) { annotations.clone() } else { json!({}) };
        let pipeline = json!({
            "metadata": {"name": "frames", "namespace": "vision", "annotations": annotations},
            "spec": {"vertices": [
                {"name": "in", "source": {"generator": {}}},
                {"name": "decode", "udf": container, "metadata": {"annotations": of_vertex}},
                {"name": "infer", "sink": {"udsink": container}, "metadata": {"annotations": {NETWORKS: "rdma-a"}}},
            ]},
        });
        let pipeline: Pipeline = serde_json::from_value(pipeline).expect("a Pipeline decodes");
        let declared = Declared::of(&pipeline);
        let plan = Plan::new("vision", [("frames", &declared)], |_| false, &settings);
        for problem in plan.problems.values().flatten() {
            assert!(!problem.is_empty() && problem.len() <= LONGEST, "{problem}");
            assert!(!problem.contains(char::is_control), "{problem:?}");
        }
        for (name, end) in &plan.ends {
            let service = service(Some("vision"), name, end);
            assert_eq!(validate(&service), Ok(()), "{service:?}");
            let spec = json!({"name": "decode", "pipelineName": "frames", "udf": container});
            let spec = spec.as_object().expect("an object");
            let injected = changes("vision", spec, Some(end), &settings);
            assert!(injected["metadata"]["annotations"][PLAN].is_string());
        }
    }
}
