/*
 * Debian's libgloo-dev leaves this header out, though others of its headers include it. Here is what these
 * need of it: three templates around std::shared_ptr, which lie in memory as those that the library was built
 * with (each is one smart pointer, and nothing else).
 *
 * An object that others may call while it is about to go hands out weak references to itself; its destructor
 * waits until nobody is inside.
 */
#ifndef GLOO_COMMON_MEMORY_H
#define GLOO_COMMON_MEMORY_H

#include <memory>
#include <thread>

namespace gloo
{

template <typename T> class WeakNonOwningPtr;

/* The object of its owner, from the outside. */
template <typename T> class ShareableNonOwningPtr final
{
  public:
    explicit ShareableNonOwningPtr(T *object) : held(object, [](void *) {}) {}
    ShareableNonOwningPtr(const ShareableNonOwningPtr &) = delete;
    ShareableNonOwningPtr &operator=(const ShareableNonOwningPtr &) = delete;

    ~ShareableNonOwningPtr()
    {
        const std::weak_ptr<T> others = held;
        for (held.reset(); !others.expired();) std::this_thread::yield();
    }

  private:
    friend class WeakNonOwningPtr<T>;
    std::shared_ptr<T> held;
};

/* While one is there, the object is. Empty where it was gone already. */
template <typename T> class NonOwningPtr final
{
  public:
    NonOwningPtr() = default;
    explicit NonOwningPtr(const WeakNonOwningPtr<T> &weak) : held(weak.held.lock()) {}
    T *operator->() const noexcept
    {
        return held.get();
    }
    explicit operator bool() const noexcept
    {
        return held != nullptr;
    }

  private:
    std::shared_ptr<T> held;
};

template <typename T> class WeakNonOwningPtr final
{
  public:
    WeakNonOwningPtr() = default;
    explicit WeakNonOwningPtr(const ShareableNonOwningPtr<T> &object) : held(object.held) {}

    /* Was one ever given to it, gone or not? */
    explicit operator bool() const noexcept
    {
        const std::weak_ptr<T> none;
        return held.owner_before(none) || none.owner_before(held);
    }

  private:
    friend class NonOwningPtr<T>;
    std::weak_ptr<T> held;
};

} // namespace gloo

#endif
