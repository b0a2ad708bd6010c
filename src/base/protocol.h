/*
 * Version of the control plane (proto/inspan/v1): an agent says its own when it registers, the manager's is
 * in ClusterInfo. Another major is refused on both sides, naming both; a higher minor only adds fields.
 */
#ifndef BASE_PROTOCOL_H
#define BASE_PROTOCOL_H

#define PROTOCOL_MAJOR 1
#define PROTOCOL_MINOR 0

#define PROTOCOL_MANAGER_PORT 7461 /* TCP, unless told otherwise */

#define CLUSTER_FAILURE_TIMEOUT_NS                                                                           \
    5000000000ll /* default of the cluster and of a job; heartbeats: every fifth of it */

#endif
